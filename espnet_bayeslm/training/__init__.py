"""The only code that knows ESPnet's registries and trainer."""

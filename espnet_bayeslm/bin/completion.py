"""`bayeslm completion`: a script that completes tools and options in a shell."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import List

from espnet_bayeslm.bin import lm_train
from espnet_bayeslm.bin.bayeslm import TOOLS
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.options import option

SCRIPT = """\
_bayeslm() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options=""
    if [ "${{COMP_CWORD}}" -eq 1 ]; then
        options="{tools}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
        case "${{word}}" in -*) ;; *) options="" ;; esac
    fi
    COMPREPLY=($(compgen -W "${{options}}" -- "${{word}}"))
}}
complete -o default -F _bayeslm bayeslm
"""
ZSH = "autoload -Uz bashcompinit && bashcompinit\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Options of `bayeslm completion`."""

    shell: str = option("The shell", choices=("bash", "zsh"), positional=True)


def options_of(tool: str) -> List[str]:
    """Options of a tool."""
    module = importlib.import_module(f"espnet_bayeslm.bin.{tool}")
    if module is lm_train:  # whose parser is ESPnet's
        return sorted(set(re.findall(r"--\w+", lm_train.HELP)))
    return sorted(o for o in module.get_parser()._option_string_actions if o.startswith("--"))


def completion(options: CompletionOptions) -> None:
    """Print the script."""
    cases = [f'            {tool}) options="{" ".join(options_of(tool))}" ;;' for tool in TOOLS]
    script = SCRIPT.format(tools=" ".join([*TOOLS, "--help", "--version"]), cases="\n".join(cases))
    print((ZSH if options.shell == "zsh" else "") + script, end="")


TOOL = Tool(
    "completion",
    "A script that completes tools, options and files: put"
    ' `eval "$(bayeslm completion bash)"` into ~/.bashrc (or zsh, ~/.zshrc)',
    completion,
    CompletionOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()

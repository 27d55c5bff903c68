import pytest

from espnet_bayeslm.bin.bayeslm import TOOLS, main


def test_help_lists_the_tools(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(tool in out for tool in TOOLS)


def test_unknown_tool(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["rescor"])
    assert stop.value.code == 2
    assert "unknown tool 'rescor'" in capsys.readouterr().err


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_has_help_and_a_config_option(tool, capsys):
    with pytest.raises(SystemExit) as stop:
        main([tool, "--help"])
    assert stop.value.code == 0
    assert "--config" in capsys.readouterr().out


def test_options_from_a_config_file(tmp_path, capsys):
    config = tmp_path / "ngram.yaml"
    config.write_text("order: 2\nlmplz: none\ndiscount_fallback: true\n")
    (tmp_path / "text").write_text("a b c\na b d\n")
    main(
        [
            *["ngram", "--config", str(config), "--text", f"{tmp_path}/text"],
            *["--arpa", f"{tmp_path}/out.arpa"],
        ]
    )
    assert "\\2-grams:" in (tmp_path / "out.arpa").read_text()
    assert "\\3-grams:" not in (tmp_path / "out.arpa").read_text()

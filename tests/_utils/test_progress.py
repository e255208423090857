import re

from effdeg._utils.progress import progress_bar


def test_progress_is_shown_on_the_error_stream_of_a_terminal_only(capsys, monkeypatch):
    with progress_bar("measure", 4, enabled=True) as update:
        update(4)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    with progress_bar("[measure]", 4, enabled=True) as update:
        update(1)
        update(note="model[best] x]y[/z]")
        update(4)
    out, err = capsys.readouterr()
    assert out == ""
    assert "[measure]" in err
    assert "4/4" in re.sub(r"\x1b\[[\d;]*m", "", err)
    assert "model[best] x]y[/z]" in err  # not taken for the markup of rich


def test_progress_can_be_off(capsys):
    with progress_bar("measure", 4, enabled=False) as update:
        update(1, "half way")
    assert capsys.readouterr() == ("", "")

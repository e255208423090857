from effdeg._utils.progress import progress_bar


def test_progress_can_be_off(capsys):
    with progress_bar("measure", 4, enabled=False) as update:
        update(1, "half way")
    assert capsys.readouterr() == ("", "")

"""Case 31: processes that are killed in the middle go on from their checkpoint as if nothing had happened."""

from tests.loss_scaling.processes import finish, start, start_workers


def test_case_31_a_killed_process_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path):
    straight = finish(start("interrupted.py", str(tmp_path / "straight"), "-1"))
    killed = start("interrupted.py", str(tmp_path / "killed"), "5")
    killed.communicate(timeout=300)
    assert killed.returncode == -9
    assert finish(start("interrupted.py", str(tmp_path / "killed"), "-1")) == straight
    assert straight["status"][2] == 3


def test_case_31_of_two_processes_one_is_killed_and_both_go_on_from_the_checkpoint(tmp_path):
    straight = [finish(process) for process in start_workers("interrupted.py", str(tmp_path / "straight"), "-1")]
    folder = str(tmp_path / "killed")
    survivor, killed = start_workers("interrupted.py", (folder, "-1"), (folder, "5"))
    killed.communicate(timeout=300)
    survivor.kill()  # it waits for the other one
    survivor.communicate(timeout=60)
    assert killed.returncode == -9
    resumed = [finish(process) for process in start_workers("interrupted.py", folder, "-1")]
    assert resumed == straight
    assert straight[0] == straight[1]
    assert straight[0]["status"][2] == 3

"""Names and addresses of an allocation's nodes, and the command line of a step."""

import pytest

from swe_rl.hardware.slurm.jobs import current_allocation
from swe_rl.hardware.slurm.nodes import NodesError, names_of, node_address, node_names, step_command, step_environment
from swe_rl.host.program import Completed


def job(node="n2", nodes="n[1-3]"):
    return current_allocation({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": node, "SLURM_JOB_NODELIST": nodes})


def slurm(words, timeout_s, environ):
    answers = {
        "hostnames": "n1\nn2\nn3\n",
        "node": "NodeName=n1 Arch=x86_64\n   NodeAddr=10.0.0.1 NodeHostName=n1 Version=22",
    }
    return Completed(0, answers[words[2]])


def silent(words, timeout_s, environ):
    return Completed(1, "", "no contact")


@pytest.mark.parametrize(("home", "names"), [(0, "n2 n1 n3"), (1, "n1 n2 n3"), (2, "n1 n3 n2")])
def test_this_node_has_the_number_that_the_layout_gives_it(home, names):
    assert " ".join(node_names(job(), home, slurm)) == names


@pytest.mark.parametrize("form", ["gpu-a[01-03,7].hpc.example.edu", "x1,x[2-3,9]", "rack[1-2]n[1-2]"])
def test_slurm_itself_reads_its_lists_of_nodes_and_names_may_have_a_domain(form):
    asked = []

    def hostnames(words, timeout_s, environ):
        asked.append(words[-1])
        return Completed(0, "gpu-a01.hpc.example.edu\ngpu-a02.hpc.example.edu\n")

    here = job("gpu-a02.hpc.example.edu", form)
    assert node_names(here, 0, hostnames) == ("gpu-a02.hpc.example.edu", "gpu-a01.hpc.example.edu")
    assert asked == [form]
    assert "--nodelist=gpu-a01.hpc.example.edu" in step_command("gpu-a01.hpc.example.edu", "engine")


def test_too_few_nodes():
    with pytest.raises(NodesError, match=r"speaks of node 3, and job 7 has 3"):
        node_names(job(), 3, slurm)


def test_slurm_does_not_answer():
    with pytest.raises(NodesError, match="no contact"):
        node_names(job(), 0, silent)


JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.mark.parametrize(
    ("away", "environ", "said"),
    [
        ([1, 2], {}, r"^layout=x puts an engine on node 1, where only SLURM .* job of that many nodes, or pray$"),
        ([1, 3], JOB, r"^layout=x puts an engine on node 3, and job 7 has 3 \(n\[1-3\]\): ask for more"),
    ],
)
def test_what_a_layout_cannot_have(away, environ, said):
    with pytest.raises(NodesError, match=said):
        names_of(away, 0, "layout=x puts an engine", "pray", environ, slurm)


def test_nodes_are_asked_for_only_where_a_layout_needs_them():
    assert names_of([], 0, "", "", {}, slurm) == ()
    assert names_of([1, 2], 0, "", "", JOB, slurm) == ("n2", "n1", "n3")


def test_address():
    assert node_address("n1", slurm) == "10.0.0.1"
    assert node_address("n1", silent) == "n1"


def test_a_step_is_one_process_beside_the_others():
    line = step_command("n3", "engine2")
    assert line[0] == "srun" and {"--overlap", "--nodelist=n3", "--ntasks=1"} <= set(line)
    assert step_environment({"SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}) == {"SLURM_JOB_ID": "7"}

"""The names of an engine's GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.environment import visible_gpus
from swe_rl.engine.vllm.devices import DeviceError, mig_names, visible_devices
from swe_rl.layout.placement import PlacedGpu

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
"""
FIRST, SECOND = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"


def gpus(*indices):
    return [PlacedGpu(0, index) for index in indices]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, "2,3"), ("4,5,6,7", "6,7"), ("GPU-a, GPU-b, GPU-c, GPU-d", "GPU-c,GPU-d")],
)
def test_names_of_this_process(visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_devices(gpus(2, 3), environ) == expected


def test_too_few():
    with pytest.raises(DeviceError, match=r"on GPU 3 of this node, but this process sees 2 \(CUDA_VISIBLE_DEVICES=0,1"):
        visible_devices(gpus(2, 3)[1:], {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("NoDevFiles", 0), ("0,-1,1", 1), (" 4 , 5", 2)])
@pytest.mark.parametrize("mig", [False, True])
def test_the_check_counts_what_a_start_gives_out(visible, count, mig):
    """What the variable hides is hidden from both, as CUDA reads it."""
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environ) == count
    given = visible_devices(gpus(*range(count)), environ)
    assert given == ",".join(visible.replace(" ", "").split(",")[:count])
    if count == 0 or not mig:
        with pytest.raises(DeviceError, match=f"this process sees {count} "):
            visible_devices(gpus(count), environ, mig=mig, list_devices=lambda: LISTING)


def test_mig_slices_of_the_environment():
    environ = {"CUDA_VISIBLE_DEVICES": f"{FIRST},{SECOND}"}
    assert visible_devices(gpus(1), environ, mig=True) == SECOND


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0"}])
def test_mig_slices_are_asked_for_where_the_environment_has_none(environ):
    assert mig_names(LISTING) == [FIRST, SECOND]
    found = visible_devices(gpus(0), environ, mig=True, list_devices=lambda: LISTING)
    assert found == FIRST


def test_no_mig_slice():
    with pytest.raises(DeviceError, match="names a MIG slice"):
        visible_devices(gpus(0), {}, mig=True, list_devices=lambda: "")


@given(st.lists(st.integers(0, 15), min_size=1, max_size=16, unique=True), st.data())
def test_engines_share_no_device(order, data):
    cut = data.draw(st.integers(0, len(order)))
    environ = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}
    parts = [range(cut), range(cut, len(order))]
    names = [visible_devices(gpus(*part), environ).split(",") for part in parts if part]
    assert sorted(name for part in names for name in part) == sorted(map(str, order))

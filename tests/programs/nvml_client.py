"""nvidia-ml-py, unmodified: what a monitoring tool asks, while a process, whose number is the first argument,
holds 256 MiB of card 0, and another one, which holds nothing, keeps it busy."""
import sys

import pynvml as nvml

nvml.nvmlInit()
assert nvml.nvmlDeviceGetCount() == 2
assert nvml.nvmlSystemGetCudaDriverVersion() == 13050
card, idle = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(1)
uuid = nvml.nvmlDeviceGetUUID(card)
assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(card).busId)) == 0
assert nvml.nvmlDeviceGetName(card) == "NVIDIA H100 80GB HBM3"
first, second = nvml.nvmlDeviceGetMemoryInfo(card), nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
assert first.used == second.used >= 256 << 20 and first.used + first.free == first.total
assert nvml.nvmlDeviceGetMemoryInfo(idle).used == 0
processes = nvml.nvmlDeviceGetComputeRunningProcesses(card)
assert [(p.pid, p.usedGpuMemory) for p in processes] == [(int(sys.argv[1]), first.used)], processes
assert nvml.nvmlDeviceGetComputeRunningProcesses(idle) == []
assert nvml.nvmlDeviceGetUtilizationRates(card).gpu == 100
assert nvml.nvmlDeviceGetUtilizationRates(idle).gpu == 0
loads = {p.pid: p.smUtil for p in nvml.nvmlDeviceGetProcessUtilization(card, 0)}
assert loads == {int(sys.argv[1]): 0, int(sys.argv[2]): 100}, loads
assert nvml.nvmlDeviceGetMigMode(card) == [0, 0]
try:
    nvml.nvmlDeviceGetFanSpeed(card)
    raise SystemExit("a fan that is not there")
except nvml.NVMLError as error:
    assert error.value == nvml.NVML_ERROR_NOT_SUPPORTED, error
nvml.nvmlShutdown()
print("OK")

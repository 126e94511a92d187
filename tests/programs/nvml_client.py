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
kind, samples = nvml.nvmlDeviceGetSamples(card, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT and len(samples) > 1
assert samples[-1].sampleValue.uiVal == 100, samples[-1]
# The last full window alone.
since = samples[-2].timeStamp
loads = {p.pid: p.smUtil for p in nvml.nvmlDeviceGetProcessUtilization(card, since)}
assert loads == {int(sys.argv[1]): 0, int(sys.argv[2]): 100}, loads
infos = {p.pid: p.smUtil for p in nvml.nvmlDeviceGetProcessesUtilizationInfo(card, since)}
assert infos == loads, infos
_, others = nvml.nvmlDeviceGetSamples(idle, nvml.NVML_GPU_UTILIZATION_SAMPLES, samples[0].timeStamp)
assert {s.sampleValue.uiVal for s in others} == {0} and others[0].timeStamp > samples[0].timeStamp, others
assert nvml.nvmlDeviceGetMigMode(card) == [0, 0]


def refused(code, call, *arguments):
    try:
        raise SystemExit(f"{call.__name__}: {call(*arguments)}")
    except nvml.NVMLError as error:
        assert error.value == code, error


refused(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetSamples, card, nvml.NVML_MEMORY_UTILIZATION_SAMPLES, 1 << 62)
refused(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetSamples, card, nvml.NVML_MEMORY_CLK_SAMPLES, 0)
events = nvml.nvmlEventSetCreate()
assert nvml.nvmlDeviceGetSupportedEventTypes(card) & nvml.nvmlEventTypeXidCriticalError
for each in (card, idle):
    nvml.nvmlDeviceRegisterEvents(each, nvml.nvmlEventTypeXidCriticalError, events)
refused(nvml.NVML_ERROR_TIMEOUT, nvml.nvmlEventSetWait_v2, events, 1)
# The plan of faults has an Xid of the other card here.
refused(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetFanSpeed, card)
event = nvml.nvmlEventSetWait_v2(events, 60000)
assert nvml.nvmlDeviceGetIndex(event.device) == 1 and event.eventType == nvml.nvmlEventTypeXidCriticalError
assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (48, 0xFFFFFFFF, 0xFFFFFFFF), event
nvml.nvmlEventSetFree(events)
nvml.nvmlShutdown()
print("OK")

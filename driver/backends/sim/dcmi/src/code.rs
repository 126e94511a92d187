//! Return codes of DCMI.

use aliquot_sim_device::npu::NpuError;

/// A result other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

/// What every call comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

/// An argument that cannot be; the name is the one that all simulated libraries share.
pub(crate) const INVALID_VALUE: Code = Code(-8001);
pub(crate) const NOT_PERMITTED: Code = Code(-8002);
pub(crate) const INNER: Code = Code(-8005);
pub(crate) const TIMEOUT: Code = Code(-8006);
pub(crate) const NOT_THERE: Code = Code(-8008);
pub(crate) const NOT_READY: Code = Code(-8012);
pub(crate) const OCCUPIED: Code = Code(-8020);
pub(crate) const NOT_SUPPORTED: Code = Code(-8255);

impl From<NpuError> for Code {
    fn from(error: NpuError) -> Self {
        match error {
            NpuError::BadParameter => INVALID_VALUE,
            NpuError::NotPermitted => NOT_PERMITTED,
            NpuError::Occupied => OCCUPIED,
            NpuError::NoDevice => NOT_THERE,
            NpuError::Recovery | NpuError::File { .. } => INNER,
        }
    }
}

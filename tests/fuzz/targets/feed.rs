//! The input of a target that takes it piece by piece.

/// Taken from the front; zeros after its end.
pub(crate) struct Feed<'a>(pub(crate) &'a [u8]);

impl Feed<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let length = N.min(self.0.len());
        let (front, rest) = self.0.split_at(length);
        taken[..length].copy_from_slice(front);
        self.0 = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

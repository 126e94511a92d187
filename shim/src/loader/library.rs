//! The vendor's libraries, and calls of their functions that are not intercepted.

/// A vendor library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libcuda.so.1`
    Cuda,
    /// `libnvidia-ml.so.1`
    Nvml,
}

/// Makes a name a C string.
macro_rules! c_name {
    ($name:ident) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

/// Functions of a vendor library that are called and not intercepted: `None` where the library lacks them.
macro_rules! calls {
    ($library:ident; $( $(#[$doc:meta])* fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ); )*) => { $(
        $(#[$doc])*
        #[expect(clippy::allow_attributes, reason = "not every name is in another case")]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's name and signature")]
        pub(crate) fn $name($($arg: $ty),*) -> Option<i32> {
            static REAL: $crate::loader::resolve::Cached = $crate::loader::resolve::Cached::new();
            // Worked out when this is built, not at each call.
            const NAME: &core::ffi::CStr = c_name!($name);
            let real = REAL.get($crate::loader::library::Library::$library, NAME)?;
            type Real = unsafe extern "C" fn($($ty),*) -> i32;
            // SAFETY: the address of a function of this signature, by the vendor's header.
            let real = unsafe { core::mem::transmute::<*const (), Real>(real) };
            // SAFETY: pointers among the arguments are valid for what the function does with them.
            Some(unsafe { real($($arg),*) })
        }
    )* };
}

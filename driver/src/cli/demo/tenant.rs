//! The tenant of the demo: a program that opens the driver library and calls it, as any program does.
//!
//! It is unaware of limits. It prints lines to standard output, and ends with its standard input.
//!
//! | words | what it does |
//! |---|---|
//! | `fill MIB` | allocates in pieces of 256 MiB until it has so much or is refused, and holds that |
//! | `work NANOS` | launches kernels of that length, one after the other |

// UNSAFETY: a driver library is called through pointers that the loader gives; that is what a tenant does.
#![expect(unsafe_code, reason = "calls into a driver library that is found at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// What one allocation asks for.
const PIECE: usize = 256 << 20;

/// Tenant of the demo
#[derive(Debug, clap::Args)]
pub(in super::super) struct Args {
    /// What it does
    #[command(subcommand)]
    what: TenantAction,
}

#[derive(Debug, clap::Subcommand)]
enum TenantAction {
    /// Hold memory
    Fill { mib: usize },
    /// Compute
    Work { nanos: u64 },
}

/// The driver library, loaded.
struct CudaDriver(*mut c_void);

/// An answer of the driver that is no success.
struct DriverError(c_int);

pub(in super::super) fn run(args: &Args) -> u8 {
    let done = match args.what {
        TenantAction::Fill { mib } => fill(mib << 20),
        TenantAction::Work { nanos } => work(nanos),
    };
    match done {
        Ok(()) => 0,
        Err(why) => {
            say(&format!("failed {why}"));
            1
        }
    }
}

/// Writes a line. The reader may have exited; this program then ends soon after.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

fn wait_for_the_end_of_input() {
    let mut rest = Vec::new();
    drop(io::stdin().lock().read_to_end(&mut rest));
}

fn fill(wanted: usize) -> Result<(), String> {
    let driver = CudaDriver::open()?;
    driver.begin()?;
    let mut held = 0;
    let refused = loop {
        if held >= wanted {
            break None;
        }
        match driver.allocate(PIECE) {
            Ok(()) => held += PIECE,
            Err(DriverError(code)) => break Some(code),
        }
    };
    let (free, total) = driver.memory()?;
    let (code, name) = (refused.unwrap_or(0), driver.name_of(refused.unwrap_or(0)));
    say(&format!("filled {} {held} {code} {name} {free} {total}", std::process::id()));
    wait_for_the_end_of_input();
    Ok(())
}

fn work(nanos: u64) -> Result<(), String> {
    static OVER: AtomicBool = AtomicBool::new(false);
    let driver = CudaDriver::open()?;
    driver.begin()?;
    let kernel = driver.kernel(nanos)?;
    std::thread::spawn(|| {
        wait_for_the_end_of_input();
        OVER.store(true, Ordering::SeqCst);
    });
    say(&format!("works {}", std::process::id()));
    // Always as much as the driver takes: a tenant that pauses to wait would leave of its share what it pauses.
    while !OVER.load(Ordering::SeqCst) {
        driver.launch(kernel)?;
    }
    Ok(())
}

// === impl CudaDriver ===

impl CudaDriver {
    fn open() -> Result<Self, String> {
        // SAFETY: a constant name; the library's constructors are its own.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() { Err("there is no libcuda.so.1".to_owned()) } else { Ok(Self(handle)) }
    }

    fn function(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: a handle that was opened and is never closed, and a constant name.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if found.is_null() { Err(format!("the driver has no {}", name.to_string_lossy())) } else { Ok(found) }
    }

    /// A context on the first card.
    fn begin(&self) -> Result<(), String> {
        type Init = extern "C" fn(c_uint) -> c_int;
        type Retain = extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Current = extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the driver's own declaration of this name.
        let init: Init = unsafe { std::mem::transmute(self.function(c"cuInit")?) };
        // SAFETY: the driver's own declaration of this name.
        let retain: Retain = unsafe { std::mem::transmute(self.function(c"cuDevicePrimaryCtxRetain")?) };
        // SAFETY: the driver's own declaration of this name.
        let current: Current = unsafe { std::mem::transmute(self.function(c"cuCtxSetCurrent")?) };
        let mut context = std::ptr::null_mut();
        self.ok("cuInit", init(0))?;
        self.ok("cuDevicePrimaryCtxRetain", retain(&raw mut context, 0))?;
        self.ok("cuCtxSetCurrent", current(context))
    }

    fn allocate(&self, bytes: usize) -> Result<(), DriverError> {
        type Allocate = extern "C" fn(*mut u64, usize) -> c_int;
        let Ok(function) = self.function(c"cuMemAlloc_v2") else { return Err(DriverError(-1)) };
        // SAFETY: the driver's own declaration of this name.
        let allocate: Allocate = unsafe { std::mem::transmute(function) };
        let mut address = 0;
        match allocate(&raw mut address, bytes) {
            0 => Ok(()),
            code => Err(DriverError(code)),
        }
    }

    /// Free and total memory as the driver shows it.
    fn memory(&self) -> Result<(usize, usize), String> {
        type Info = extern "C" fn(*mut usize, *mut usize) -> c_int;
        // SAFETY: the driver's own declaration of this name.
        let info: Info = unsafe { std::mem::transmute(self.function(c"cuMemGetInfo_v2")?) };
        let (mut free, mut total) = (0, 0);
        self.ok("cuMemGetInfo", info(&raw mut free, &raw mut total))?;
        Ok((free, total))
    }

    /// A kernel of this length.
    fn kernel(&self, nanos: u64) -> Result<*mut c_void, String> {
        type Load = extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
        type Find = extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
        // SAFETY: the driver's own declaration of this name.
        let load: Load = unsafe { std::mem::transmute(self.function(c"cuModuleLoadData")?) };
        // SAFETY: the driver's own declaration of this name.
        let find: Find = unsafe { std::mem::transmute(self.function(c"cuModuleGetFunction")?) };
        let name = CString::new(format!("k_{nanos}")).map_err(|error| error.to_string())?;
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        self.ok("cuModuleLoadData", load(&raw mut module, c"".as_ptr().cast()))?;
        self.ok("cuModuleGetFunction", find(&raw mut kernel, module, name.as_ptr()))?;
        Ok(kernel)
    }

    fn launch(&self, kernel: *mut c_void) -> Result<(), String> {
        type Launch = extern "C" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let nothing = std::ptr::null_mut();
        // SAFETY: the driver's own declaration of this name.
        let launch: Launch = unsafe { std::mem::transmute(self.function(c"cuLaunchKernel")?) };
        let none = std::ptr::null_mut();
        self.ok("cuLaunchKernel", launch(kernel, 1, 1, 1, 1, 1, 1, 0, nothing, none, none))
    }

    fn ok(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(format!("{call}: {}", self.name_of(code))) }
    }

    /// The driver's name of an answer.
    fn name_of(&self, code: c_int) -> String {
        type Name = extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let Ok(function) = self.function(c"cuGetErrorName") else { return code.to_string() };
        // SAFETY: the driver's own declaration of this name.
        let name: Name = unsafe { std::mem::transmute(function) };
        let mut text = std::ptr::null();
        if name(code, &raw mut text) != 0 || text.is_null() {
            return code.to_string();
        }
        // SAFETY: the driver answered with one of its constant texts.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

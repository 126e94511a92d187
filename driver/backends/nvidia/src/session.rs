//! The driver's library, initialised anew when its driver is loaded anew.
//!
//! ```text
//!   serving ── the kernel shows another load of the driver, or a call is told that the library is not initialised ──▶ stale
//!      ▲                                                                                                          │ discovery
//!      └───── the library is shut down, loaded and initialised; watches register again ◀──────────────────────────┘
//! ```
//!
//! Calls share the library; the change waits until none is in progress. A wait for events is short for that reason.
//!
//! An update of the driver brings other files. With each initialisation they are found and checked anew, for the library and for
//! containers. Files that were found once are waited for: discovery fails until they are there again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::driver_root::{DriverFiles, DriverRootError, HostRoots};
use crate::ffi::{CreateFailure, Fault, Library, Profile};
use crate::health::OpenError;

/// Where the kernel shows the driver, below the host's root. Made anew with each load of it, with another number.
const MODULE: &str = "sys/module/nvidia";

/// The library through all loads of the driver.
#[derive(Debug)]
pub(crate) struct Session {
    source: DriverSource,
    /// Where the kernel shows the driver.
    module: PathBuf,
    loaded: RwLock<Loaded>,
    /// A call was told that the library is not initialised.
    is_stale: AtomicBool,
    /// Goes up with every initialisation.
    number: AtomicU64,
}

/// Where the driver's files are.
#[derive(Clone, Debug)]
pub(crate) enum DriverSource {
    /// Where the loader finds them; containers bring their own.
    Loader,
    /// On a host, whose files containers get.
    Host(HostRoots),
}

/// The driver's files for containers.
#[derive(Clone, Debug)]
pub(crate) enum ContainerFiles {
    /// Containers bring their own.
    Own,
    /// Containers mount these.
    Found(Arc<DriverFiles>),
    /// The host has none, and why; the library is the loader's.
    Missing(String),
}

/// A file of the loaded driver that containers need and the host has not.
#[derive(Clone, Debug)]
pub(crate) struct MissingFile {
    /// Path on the host.
    pub(crate) path: String,
    /// Version of the files that are there instead.
    pub(crate) there: Option<String>,
}

/// One initialisation.
#[derive(Debug)]
struct Loaded {
    /// `None`: the driver is not there now.
    library: Option<Library>,
    files: ContainerFiles,
    /// Version of the driver.
    driver: String,
    /// Number of the driver's load in the kernel.
    load: u64,
}

// === impl DriverSource ===

impl DriverSource {
    fn files(&self) -> Result<ContainerFiles, DriverRootError> {
        let Self::Host(place) = self else { return Ok(ContainerFiles::Own) };
        match DriverFiles::find(place) {
            Ok(files) => Ok(ContainerFiles::Found(Arc::new(files))),
            Err(error) if place.driver.is_some() => Err(error),
            Err(error) => Ok(ContainerFiles::Missing(error.to_string())),
        }
    }

    /// Where this process sees the host's root.
    fn host(&self) -> &Path {
        match self {
            Self::Loader => Path::new("/"),
            Self::Host(place) => &place.host,
        }
    }
}

// === impl ContainerFiles ===

impl ContainerFiles {
    /// The library that is among them.
    fn library(&self) -> Option<&Path> {
        match self {
            Self::Found(files) => Some(&files.management),
            Self::Own | Self::Missing(_) => None,
        }
    }
}

// === impl Session ===

impl Session {
    /// Loads and initialises the library.
    ///
    /// # Errors
    /// [`OpenError::DriverRoot`] if a driver root that was named has no driver; else why the library serves no driver.
    pub(crate) fn open(source: DriverSource) -> Result<Self, OpenError> {
        // The kernel shows its driver below the host's root, or below `/` if it does not.
        let seen = source.host().join(MODULE);
        let module = if seen.exists() { seen } else { Path::new("/").join(MODULE) };
        let files = source.files().map_err(OpenError::DriverRoot)?;
        let loaded = Loaded::open(files, &module).map_err(|fault| OpenError::of("initialise", fault))?;
        let (loaded, number) = (RwLock::new(loaded), AtomicU64::new(1));
        Ok(Self { source, module, loaded, is_stale: AtomicBool::new(false), number })
    }

    /// Calls the library.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&Library) -> Result<T, Fault>) -> Result<T, Fault> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let answer = loaded.library.as_ref().ok_or(Fault::Unloaded).and_then(call);
        if answer.as_ref().is_err_and(Fault::is_uninitialised) {
            self.is_stale.store(true, Ordering::Release);
        }
        answer
    }

    /// Makes an instance, as [`Library::make`].
    pub(crate) fn make(&self, uuid: &str, profile: &Profile, place: (u32, u32)) -> Result<(), CreateFailure> {
        let mut made = Ok(());
        let answer = self.call(|library| {
            made = library.make(uuid, profile, place);
            Ok(())
        });
        answer.map_err(CreateFailure::Nothing).and(made)
    }

    /// Initialises the library anew if the driver was loaded anew.
    pub(crate) fn refresh(&self) -> Result<(), Fault> {
        if self.serves(&self.loaded.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        if self.serves(&loaded) {
            return Ok(());
        }
        // It is shut down first: the library counts its initialisations.
        loaded.library = None;
        let files = self.files_again(&loaded.files)?;
        *loaded = Loaded::open(files, &self.module)?;
        self.is_stale.store(false, Ordering::Release);
        self.number.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// The files of the driver that there is now.
    fn files_again(&self, before: &ContainerFiles) -> Result<ContainerFiles, Fault> {
        match (self.source.files(), before) {
            (Err(error), _) => Err(Fault::NotLoaded(error.to_string())),
            (Ok(ContainerFiles::Missing(why)), ContainerFiles::Found(_)) => Err(Fault::NotLoaded(why)),
            (Ok(files), _) => Ok(files),
        }
    }

    /// The driver's files, as the latest initialisation found them.
    pub(crate) fn files(&self) -> ContainerFiles {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).files.clone()
    }

    /// A file of the loaded driver that went from the host; `None`: all that containers mount are there. Files of the same version
    /// that came to another place are taken from there.
    pub(crate) fn missing_file(&self) -> Option<MissingFile> {
        let ContainerFiles::Found(files) = self.files() else { return None };
        let path = files.missing()?.to_owned();
        let there = match self.source.files() {
            Ok(ContainerFiles::Found(now)) if now.version == files.version => {
                self.loaded.write().unwrap_or_else(PoisonError::into_inner).files =
                    ContainerFiles::Found(now);
                return None;
            }
            Ok(ContainerFiles::Found(now)) => Some(now.version.clone()),
            Ok(ContainerFiles::Own | ContainerFiles::Missing(_)) | Err(_) => None,
        };
        Some(MissingFile { path, there })
    }

    /// Number of the initialisation: handles of an earlier one are void.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Number of the initialisation if it serves the driver of now. No call of the library.
    pub(crate) fn serving(&self) -> Option<u64> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        self.serves(&loaded).then(|| self.number())
    }

    fn serves(&self, loaded: &Loaded) -> bool {
        let is_stale = self.is_stale.load(Ordering::Acquire);
        !is_stale && loaded.library.is_some() && loaded.load == number_of(&self.module)
    }

    /// Version of the driver.
    pub(crate) fn driver(&self) -> String {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).driver.clone()
    }

    /// The driver that serves the cards, and its load as the kernel numbers it, where it shows that.
    pub(crate) fn load(&self) -> String {
        let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
        let version: String = self.driver().chars().take(64).map(plain).collect();
        format!("{version}/{}", number_of(&self.module))
    }
}

// === impl Loaded ===

impl Loaded {
    fn open(files: ContainerFiles, module: &Path) -> Result<Self, Fault> {
        // Before the library looks: a driver that is loaded meanwhile is another one.
        let load = number_of(module);
        let library = files.library().map_or_else(Library::load, Library::load_from)?;
        let driver = library.driver()?;
        Ok(Self { library: Some(library), files, driver, load })
    }
}

/// Number of the driver's load; 0 if the kernel does not show it.
fn number_of(module: &Path) -> u64 {
    fs::metadata(module).map_or(0, |module| module.ino())
}

//! Every path of the host that a CDI file names is there before the file is written, whatever vendor named it: a runtime that
//! does not find one refuses the container, and says so in its own words alone.

use std::fs;
use std::path::Path;

use aliquot_cdi::ClaimSpec;
use aliquot_core::disposition::Disposition;
use aliquot_core::ports::BackendError;

/// Device nodes come by themselves, as the driver makes them on demand; files do not.
const DEVICES: &str = "/dev/";

/// Refuses a file that names a path which the host has not. The host's root is seen at `host`; its devices and the state
/// directory also at their own paths.
pub(crate) fn check(spec: &ClaimSpec, host: &Path) -> Result<(), BackendError> {
    match spec.host_paths().into_iter().find(|path| !is_there(Path::new(path), host)) {
        None => Ok(()),
        Some(path) => Err(missing(&path)),
    }
}

fn is_there(path: &Path, host: &Path) -> bool {
    // A link of the host leads on the host, where its driver follows it.
    let on_host = path.strip_prefix("/").is_ok_and(|path| fs::symlink_metadata(host.join(path)).is_ok());
    on_host || fs::metadata(path).is_ok()
}

fn missing(path: &str) -> BackendError {
    let (kind, remedy, disposition) = match path.starts_with(DEVICES) {
        true => ("a device node", "load its driver; it is looked for again", Disposition::Retry),
        false => {
            ("a file or directory that containers mount", "install its owner again", Disposition::Broken)
        }
    };
    BackendError::NotOnHost {
        what: format!("{path} of the claim's CDI file"),
        found: "none".to_owned(),
        expected: kind.to_owned(),
        remedy: remedy.to_owned(),
        disposition,
    }
}

#[cfg(test)]
mod tests {
    use aliquot_cdi::{ClaimSpecBuilder, Edit, Mount, Owner};

    use super::*;

    #[test]
    fn absent_path_of_the_host_is_named() {
        let host = tempfile::tempdir().unwrap();
        let spec = |path: &str| {
            let mut builder = ClaimSpecBuilder::new("claim".parse().unwrap());
            let mount = Mount::read_only("/inside".parse().unwrap(), path.parse().unwrap());
            let (request, share) = ("r".parse().unwrap(), "s".parse().unwrap());
            builder.device(&request, &share, &Owner::new("test"), &[Edit::Mount(mount)]).unwrap();
            builder.build().unwrap()
        };
        let library = spec("/usr/lib/libvendor-of-nobody.so");
        let error = check(&library, host.path()).unwrap_err();
        assert_eq!(error.disposition(), Disposition::Broken);
        assert!(error.to_string().contains("/usr/lib/libvendor-of-nobody.so"), "{error}");
        fs::create_dir_all(host.path().join("usr/lib")).unwrap();
        fs::write(host.path().join("usr/lib/libvendor-of-nobody.so"), "").unwrap();
        check(&library, host.path()).unwrap();
        let node = check(&spec("/dev/npu-of-nobody"), host.path()).unwrap_err();
        assert_eq!(node.disposition(), Disposition::Retry);
        // What this process sees at the path itself, such as its state directory.
        check(&spec(&host.path().display().to_string()), Path::new("/nowhere")).unwrap();
    }
}

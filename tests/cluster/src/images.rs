//! Container images as archives: made from files of this machine, or the one that `deploy/image` makes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ClusterError;

/// Where busybox may lie.
const BUSYBOX: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// The first process of a container gets no signal that it does not ask for.
const UNTIL_SIGTERM: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done";

/// What a cluster imports.
#[derive(Debug)]
pub enum Image {
    /// One layer of files of this machine.
    Made(MadeImage),
    /// An archive that `deploy/image` made.
    Archive(PathBuf),
}

/// An image of one layer.
#[derive(Debug)]
pub struct MadeImage {
    name: String,
    entrypoint: Vec<String>,
    root: TempDir,
}

impl Image {
    /// See [`MadeImage::busybox`].
    ///
    /// # Errors
    /// [`ClusterError::Missing`] without a busybox.
    pub fn busybox(name: &str, entrypoint: &[&str]) -> Result<Self, ClusterError> {
        MadeImage::busybox(name, entrypoint).map(Self::Made)
    }

    /// See [`MadeImage::tenant`].
    ///
    /// # Errors
    /// [`ClusterError::Missing`] without a busybox, [`ClusterError::Failed`] without a C compiler.
    pub fn tenant(name: &str, aliquot: &Path) -> Result<Self, ClusterError> {
        MadeImage::tenant(name, aliquot).map(Self::Made)
    }

    /// The image that users install, named [`AGENT_IMAGE`](crate::AGENT_IMAGE): of the directory that `ALIQUOT_RELEASE` names,
    /// or made of `aliquot` now, below `directory`.
    ///
    /// # Errors
    /// [`ClusterError::Missing`]: this machine cannot make it.
    pub fn agent(aliquot: &Path, directory: &Path) -> Result<Self, ClusterError> {
        let (architecture, name) =
            if cfg!(target_arch = "aarch64") { ("aarch64", "arm64") } else { ("x86_64", "amd64") };
        let file = format!("aliquot-image-{}-{name}.tar", env!("CARGO_PKG_VERSION"));
        if let Some(release) = std::env::var_os("ALIQUOT_RELEASE") {
            let archive = Path::new(&release).join(&file);
            if archive.exists() {
                return Ok(Self::Archive(archive));
            }
        }
        let archive = directory.join(file);
        let maker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/image");
        let mut make = Command::new(&maker);
        let made = make.arg(aliquot).arg(architecture).arg(&archive).output();
        let made = made.map_err(|error| ClusterError::failed("deploy/image", error))?;
        let said = String::from_utf8_lossy(&made.stderr);
        match made.status.code() {
            Some(0) => Ok(Self::Archive(archive)),
            Some(4) => Err(ClusterError::Missing(said.lines().last().unwrap_or_default().to_owned())),
            _ => Err(ClusterError::failed("deploy/image", said)),
        }
    }

    /// Writes the archive, as `ctr images import` and `kind load image-archive` read it.
    ///
    /// # Errors
    /// `tar` or `sha256sum` fails, or the archive cannot be copied.
    pub fn write(&self, archive: &Path) -> Result<(), ClusterError> {
        match self {
            Self::Made(image) => image.write(archive),
            Self::Archive(file) if file == archive => Ok(()),
            Self::Archive(file) => {
                fs::copy(file, archive).map(drop).map_err(|error| ClusterError::file(file, &error))
            }
        }
    }
}

impl MadeImage {
    /// A static busybox with all its commands. A name that begins with `localhost/` is looked up nowhere else.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] without a busybox.
    pub fn busybox(name: &str, entrypoint: &[&str]) -> Result<Self, ClusterError> {
        let missing = || ClusterError::Missing("busybox is missing: install busybox-static".to_owned());
        let busybox = BUSYBOX.into_iter().find(|path| Path::new(path).exists()).ok_or_else(missing)?;
        let image = Self {
            name: name.to_owned(),
            entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
            root: TempDir::new().map_err(|error| ClusterError::failed("image", error))?,
        };
        image.copy(Path::new(busybox), "/bin/busybox")?;
        for applet in
            output(Command::new(busybox).arg("--list"))?.lines().filter(|applet| *applet != "busybox")
        {
            let link = image.root.path().join("bin").join(applet);
            symlink("busybox", &link).map_err(|error| ClusterError::file(&link, &error))?;
        }
        for directory in ["tmp", "etc", "dev", "proc", "sys", "run", "usr/bin"] {
            let path = image.root.path().join(directory);
            fs::create_dir_all(&path).map_err(|error| ClusterError::file(&path, &error))?;
        }
        image.write_file("/etc/passwd", "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")?;
        Ok(image)
    }

    /// A busybox with the tenant's program `/bin/tenant` (`tests/cluster/tenant.c`) and what driver libraries of `aliquot`
    /// are linked to. Its containers do nothing until SIGTERM.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] without a busybox, [`ClusterError::Failed`] without a C compiler.
    pub fn tenant(name: &str, aliquot: &Path) -> Result<Self, ClusterError> {
        let image = Self::busybox(name, &["sh", "-c", UNTIL_SIGTERM])?;
        let directory = TempDir::new().map_err(|error| ClusterError::failed("image", error))?;
        let program = directory.path().join("tenant");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tenant.c");
        output(Command::new("cc").arg("-o").arg(&program).arg(source).arg("-ldl"))?;
        image.program(&program, "/bin/tenant")?;
        image.libraries_of(aliquot)?;
        Ok(image)
    }

    /// Adds a file of this machine.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn copy(&self, from: &Path, to: &str) -> Result<(), ClusterError> {
        let path = self.inside(to)?;
        fs::copy(from, &path).map_err(|error| ClusterError::file(from, &error))?;
        Ok(())
    }

    /// Adds a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_file(&self, to: &str, content: &str) -> Result<(), ClusterError> {
        let path = self.inside(to)?;
        fs::write(&path, content).map_err(|error| ClusterError::file(&path, &error))
    }

    /// Adds a dynamic program of this machine under a path, with the loader and the libraries it names.
    ///
    /// # Errors
    /// It cannot be copied, or `ldd` does not know it.
    pub fn program(&self, from: &Path, to: &str) -> Result<(), ClusterError> {
        self.copy(from, to)?;
        self.libraries_of(from)
    }

    /// Adds the loader and the libraries that a program or library of this machine names.
    ///
    /// # Errors
    /// They cannot be copied, or `ldd` does not know the file.
    pub fn libraries_of(&self, program: &Path) -> Result<(), ClusterError> {
        for line in output(Command::new("ldd").arg(program))?.lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.copy(Path::new(library), library)?;
            }
        }
        Ok(())
    }

    /// Writes the archive, as `ctr images import` and `kind load image-archive` read it.
    ///
    /// # Errors
    /// `tar` or `sha256sum` fails.
    pub fn write(&self, archive: &Path) -> Result<(), ClusterError> {
        let layout = TempDir::new().map_err(|error| ClusterError::failed("image", error))?;
        let blobs = layout.path().join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(|error| ClusterError::file(&blobs, &error))?;
        let layer = layout.path().join("layer");
        output(
            Command::new("tar")
                .args(["--sort=name", "--numeric-owner", "--owner=0", "--group=0", "--mode=a+rX", "-cf"])
                .arg(&layer)
                .arg("-C")
                .arg(self.root.path())
                .arg("."),
        )?;
        let layer = stored(&layer, &blobs, LAYER_TYPE)?;
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        let config = stored_json(&config, layout.path(), &blobs, CONFIG_TYPE)?;
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]});
        let mut manifest = stored_json(&manifest, layout.path(), &blobs, MANIFEST_TYPE)?;
        manifest["annotations"] = json!({"io.containerd.image.name": self.name});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [manifest]});
        for (file, content) in [("index.json", index), ("oci-layout", json!({"imageLayoutVersion": "1.0.0"}))]
        {
            let path = layout.path().join(file);
            fs::write(&path, content.to_string()).map_err(|error| ClusterError::file(&path, &error))?;
        }
        output(Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(layout.path()).arg(".")).map(drop)
    }

    /// The place of a path of the image; its directory is made.
    fn inside(&self, path: &str) -> Result<PathBuf, ClusterError> {
        let path = self.root.path().join(path.trim_start_matches('/'));
        let parent = path.parent().unwrap_or(self.root.path());
        fs::create_dir_all(parent).map_err(|error| ClusterError::file(parent, &error))?;
        Ok(path)
    }
}

fn stored_json(content: &Value, layout: &Path, blobs: &Path, kind: &str) -> Result<Value, ClusterError> {
    let path = layout.join("blob");
    fs::write(&path, content.to_string()).map_err(|error| ClusterError::file(&path, &error))?;
    stored(&path, blobs, kind)
}

/// Moves a file to the name of its digest and returns its descriptor.
fn stored(file: &Path, blobs: &Path, kind: &str) -> Result<Value, ClusterError> {
    let said = output(Command::new("sha256sum").arg(file))?;
    let digest = said.split_whitespace().next().unwrap_or_default();
    let size = fs::metadata(file).map_err(|error| ClusterError::file(file, &error))?.len();
    fs::rename(file, blobs.join(digest)).map_err(|error| ClusterError::file(file, &error))?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
}

fn output(command: &mut Command) -> Result<String, ClusterError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| ClusterError::failed(&program, error))?;
    if !output.status.success() {
        return Err(ClusterError::failed(program, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

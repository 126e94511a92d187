//! What the configuration of a container runtime says of CDI, its imports and drop-ins included.
//!
//! ```text
//!  containerd: config.toml, its imports in their order ┐
//!  CRI-O: crio.conf, crio.conf.d by name ──────────────┴▶ layers: later ones override ─▶ RuntimeSettings
//! ```
//!
//! Versions of containerd differ in whether a later file replaces a plugin's section or adds to it, so both readings are
//! made. A file that cannot be found, read or understood makes the whole unresolved.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use aliquot_core::offer::policy::Glob;
use toml::{Table, Value};

use super::super::node_root::{NodeObject, NodeRoot};

/// Most files of one configuration.
const FILES_MAX: usize = 256;
/// Names of the plugin that makes containers, in configurations of containerd 1 and 2.
const CRI_1: [&str; 2] = ["io.containerd.grpc.v1.cri", "cri"];
const CRI_2: &str = "io.containerd.cri.v1.runtime";

/// A value and the file that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    pub(super) file: String,
}

/// What a runtime's configuration says of CDI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuntimeSettings {
    /// `enable_cdi`.
    pub(super) enabled: Option<Setting<bool>>,
    /// `cdi_spec_dirs`.
    pub(super) dirs: Option<Setting<Vec<String>>>,
    /// `default_runtime_name` or `default_runtime`.
    pub(super) default_runtime: Option<Setting<String>>,
    /// Version of containerd's configuration: 3 is that of containerd 2.
    pub(super) version: Option<i64>,
}

/// The files of one configuration, in the order in which they apply.
#[derive(Default)]
pub(super) struct Layers(Vec<Layer>);

/// Settings of one file, by section. Those of the plugin for containers have the section [`CRI_2`].
struct Layer {
    sections: BTreeMap<String, RuntimeSettings>,
    version: Option<i64>,
}

/// Why a configuration is not known.
pub(super) enum Unresolved {
    /// This user may not read a file.
    Unreadable(String),
    /// A file is absent, or says what is not understood.
    Unclear(String),
}

// === impl Layers ===

impl Layers {
    /// A containerd configuration and what it imports.
    pub(super) fn of_containerd(root: &NodeRoot, main: &Path) -> Result<Self, Unresolved> {
        let mut layers = Self::default();
        let (mut seen, mut queue) = (BTreeSet::new(), VecDeque::from([main.to_owned()]));
        while let Some(path) = queue.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let table = table(root, &path, seen.len())?;
            for import in imports(&path, &table)? {
                queue.extend(files_of(root, &path, &import)?);
            }
            layers.0.push(Layer::of(&path, &table));
        }
        Ok(layers)
    }

    /// Every file of a drop-in directory, by name; none where the directory is absent.
    pub(super) fn of_directory(root: &NodeRoot, dir: &Path, suffix: &str) -> Result<Self, Unresolved> {
        let mut layers = Self::default();
        for (number, path) in names_in(root, dir)?.iter().filter(|name| name.ends_with(suffix)).enumerate() {
            let path = dir.join(path);
            layers.0.push(Layer::of(&path, &table(root, &path, number)?));
        }
        Ok(layers)
    }

    /// One file.
    pub(super) fn of_file(root: &NodeRoot, path: &Path) -> Result<Self, Unresolved> {
        Ok(Self(vec![Layer::of(path, &table(root, path, 0)?)]))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn then(mut self, later: Self) -> Self {
        self.0.extend(later.0);
        self
    }

    /// The settings in force where a later file adds to a section, and where it replaces it.
    pub(super) fn readings(&self) -> [RuntimeSettings; 2] {
        let mut added: BTreeMap<&str, RuntimeSettings> = BTreeMap::new();
        let mut replaced = added.clone();
        for layer in &self.0 {
            for (section, settings) in &layer.sections {
                added.entry(section).or_default().override_by(settings);
                // What is outside of plugins is one structure, whose fields are added.
                match section.is_empty() {
                    true => replaced.entry(section).or_default().override_by(settings),
                    false => drop(replaced.insert(section, settings.clone())),
                }
            }
        }
        let version = self.0.first().and_then(|layer| layer.version);
        [added, replaced].map(|sections| {
            let mut whole = RuntimeSettings { version, ..RuntimeSettings::default() };
            let (cri, others): (Vec<_>, Vec<_>) = sections.iter().partition(|(name, _)| **name == CRI_2);
            others.into_iter().chain(cri).for_each(|(_, settings)| whole.override_by(settings));
            whole
        })
    }
}

// === impl Layer ===

impl Layer {
    fn of(path: &Path, table: &Table) -> Self {
        let version = table.get("version").and_then(Value::as_integer);
        let file = path.display().to_string();
        let mut sections: BTreeMap<String, RuntimeSettings> = BTreeMap::new();
        let plugins = table.get("plugins").and_then(Value::as_table);
        for (name, value) in plugins.into_iter().flatten() {
            let (old, new) = (CRI_1.contains(&name.as_str()), name == CRI_2);
            // Version 3 has another plugin of the old name, which makes no containers.
            let section = match (version, old) {
                (Some(3..), true) => continue,
                (_, true) => CRI_2,
                (_, false) => name,
            };
            if new && version.is_some_and(|version| version < 3) {
                continue;
            }
            sections.entry(section.to_owned()).or_default().collect(value, &file);
        }
        let mut rest = RuntimeSettings::default();
        table
            .iter()
            .filter(|(key, _)| *key != "plugins")
            .for_each(|(key, value)| rest.take(key, value, &file));
        sections.insert(String::new(), rest);
        Self { sections, version }
    }
}

// === impl RuntimeSettings ===

impl RuntimeSettings {
    fn override_by(&mut self, later: &Self) {
        let Self { enabled, dirs, default_runtime, version: _ } = later.clone();
        self.enabled = enabled.or(self.enabled.take());
        self.dirs = dirs.or(self.dirs.take());
        self.default_runtime = default_runtime.or(self.default_runtime.take());
    }

    /// The settings in a table and the tables in it: tables differ between versions, names do not.
    fn collect(&mut self, value: &Value, file: &str) {
        value.as_table().into_iter().flatten().for_each(|(key, value)| self.take(key, value, file));
    }

    fn take(&mut self, key: &str, value: &Value, file: &str) {
        let file_name = || file.to_owned();
        let texts = |value: &Value| {
            let texts = value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<String>>>().filter(|texts| !texts.is_empty())
        };
        match key {
            "enable_cdi" => {
                self.enabled = value.as_bool().map(|value| Setting { value, file: file_name() });
            }
            "cdi_spec_dirs" => self.dirs = texts(value).map(|value| Setting { value, file: file_name() }),
            "default_runtime_name" | "default_runtime" => {
                let text = value.as_str().filter(|text| !text.is_empty());
                self.default_runtime = text.map(|text| Setting { value: text.to_owned(), file: file_name() });
            }
            _ => self.collect(value, file),
        }
    }
}

// === files ===

fn table(root: &NodeRoot, path: &Path, number: usize) -> Result<Table, Unresolved> {
    let shown = path.display();
    if number > FILES_MAX {
        return Err(Unresolved::Unclear(format!(
            "{shown}: the configuration has more than {FILES_MAX} files"
        )));
    }
    let text = match root.text(path) {
        NodeObject::Here(text) => text,
        NodeObject::Absent => return Err(Unresolved::Unclear(format!("{shown} is named, and is not there"))),
        NodeObject::Unreadable(error) => return Err(Unresolved::Unreadable(format!("{shown}: {error}"))),
    };
    text.parse().map_err(|error: toml::de::Error| {
        Unresolved::Unclear(format!("{shown} is not understood: {}", error.message()))
    })
}

fn names_in(root: &NodeRoot, dir: &Path) -> Result<Vec<String>, Unresolved> {
    match root.names(dir) {
        NodeObject::Here(names) => Ok(names),
        NodeObject::Absent => Ok(Vec::new()),
        NodeObject::Unreadable(error) => Err(Unresolved::Unreadable(format!("{}: {error}", dir.display()))),
    }
}

fn imports(path: &Path, table: &Table) -> Result<Vec<String>, Unresolved> {
    let Some(value) = table.get("imports") else { return Ok(Vec::new()) };
    let texts = value.as_array().map(|list| list.iter().map(|text| text.as_str().map(str::to_owned)));
    texts
        .and_then(Iterator::collect)
        .ok_or_else(|| Unresolved::Unclear(format!("{}: imports is not a list of texts", path.display())))
}

/// The files of one import, in their order; a pattern may match none.
fn files_of(root: &NodeRoot, from: &Path, import: &str) -> Result<Vec<PathBuf>, Unresolved> {
    let path = from.parent().unwrap_or(Path::new("/")).join(import);
    let (dir, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
    let (Some(dir_text), Some(name)) = (dir.to_str(), name.to_str()) else {
        return Err(Unresolved::Unclear(format!("{}: import `{import}` is no file", from.display())));
    };
    if !import.contains('*') {
        return Ok(vec![path]);
    }
    if dir_text.contains(['*', '?', '[', '\\']) || name.contains(['[', '\\']) {
        return Err(Unresolved::Unclear(format!(
            "{}: the pattern `{import}` is not followed",
            from.display()
        )));
    }
    let pattern = Glob(name.to_owned());
    let names = names_in(root, dir)?;
    Ok(names.iter().filter(|name| pattern.matches(name)).map(|name| dir.join(name)).collect())
}

//! Manifests from the command line: files, directories, standard input.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::manifest::{Manifests, ProblemSeverity, Reader, TEXT_BYTES_MAX};

use super::failure::Failure;
use super::output::Terminal;

/// Manifests to read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct FileArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or - for standard input; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE", required_unless_present = "more")]
    pub(super) files: Vec<PathBuf>,

    /// The same as -f
    #[arg(value_name = "FILE")]
    pub(super) more: Vec<PathBuf>,
}

/// What kinds are read, for the note on objects of other kinds.
const KINDS: &str = "ResourceClaim, ResourceClaimTemplate, DeviceClass, ResourceSlice, DeviceTaintRule, Node, Namespace, Pod, Deployment, StatefulSet, ReplicaSet, ReplicationController, DaemonSet, Job and CronJob";

/// Reads everything that the command line names. Warnings are written; errors end the command, all at once.
pub(super) fn read(args: &FileArgs, terminal: &mut Terminal<'_>) -> Result<Manifests, Failure> {
    let mut reader = Reader::new();
    let files: Vec<PathBuf> = args.files.iter().chain(&args.more).cloned().collect();
    read_files(&mut reader, &files, terminal)?;
    finish(reader, terminal)
}

/// Reads files, directories and standard input.
pub(super) fn read_files(
    reader: &mut Reader,
    files: &[PathBuf],
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    for file in files {
        let before = reader.objects();
        reader.note_file(&file.display().to_string());
        if file == Path::new("-") {
            let advice = "Check what is written to standard input";
            let text = bounded(&mut *terminal.input, Path::new("-"), TEXT_BYTES_MAX, advice)?;
            reader.text("standard input", &text);
            some_object(reader.objects() - before, "standard input")?;
            continue;
        }
        not_an_address(file)?;
        let metadata = fs::metadata(file)
            .map_err(|source| Failure::path("read", file, source, "Check the name given with -f"))?;
        if metadata.is_dir() {
            for file in manifests_in(file)? {
                read_file(reader, &file)?;
            }
        } else {
            read_file(reader, file)?;
        }
        some_object(reader.objects() - before, &file.display().to_string())?;
    }
    Ok(())
}

/// The texts that the command line names, each under its name.
pub(super) fn texts(args: &FileArgs, terminal: &mut Terminal<'_>) -> Result<Vec<(String, String)>, Failure> {
    let mut texts = Vec::new();
    for file in args.files.iter().chain(&args.more) {
        not_an_address(file)?;
        if file == Path::new("-") {
            let advice = "Check what is written to standard input";
            let text = bounded(&mut *terminal.input, file, TEXT_BYTES_MAX, advice)?;
            texts.push(("standard input".to_owned(), text));
            continue;
        }
        let files = if file.is_dir() { manifests_in(file)? } else { vec![file.clone()] };
        for file in files {
            let text = file_text(&file)?;
            texts.push((file.display().to_string(), text));
        }
    }
    Ok(texts)
}

/// Refuses an address: nothing is fetched from a network.
fn not_an_address(file: &Path) -> Result<(), Failure> {
    let Some(text) = file.to_str().filter(|text| text.contains("://") && !file.exists()) else {
        return Ok(());
    };
    let message = format!("found an address, expected a file; fetch it: curl -fsSL {text} | aliquot … -f -");
    Err(Failure::input(text, message))
}

/// Ends a command on an input without any object: what should have written it has failed, or wrote elsewhere.
fn some_object(found: usize, source: &str) -> Result<(), Failure> {
    if found == 0 {
        let message = "found no object, expected Kubernetes manifests in YAML or JSON; check what writes it";
        return Err(Failure::input(source, message));
    }
    Ok(())
}

/// What was read. Warnings are written; errors end the command, all at once.
pub(super) fn finish(reader: Reader, terminal: &mut Terminal<'_>) -> Result<Manifests, Failure> {
    let (manifests, problems) = reader.finish();
    let (errors, warnings): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|p| p.severity == ProblemSeverity::Error);
    for warning in warnings {
        terminal.note(format_args!("warning: {warning}"))?;
    }
    if !errors.is_empty() {
        return Err(Failure::Manifests(errors));
    }
    if !manifests.ignored.is_empty() {
        let kinds: Vec<String> =
            manifests.ignored.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        terminal.note(format_args!("note: not read: {}; read are {KINDS}", kinds.join(", ")))?;
    }
    Ok(manifests)
}

fn read_file(reader: &mut Reader, file: &Path) -> Result<(), Failure> {
    reader.text(&file.display().to_string(), &file_text(file)?);
    Ok(())
}

fn file_text(file: &Path) -> Result<String, Failure> {
    let advice = "Check that it is a file that you may read";
    let open = fs::File::open(file).map_err(|source| Failure::path("read", file, source, advice))?;
    bounded(open, file, TEXT_BYTES_MAX, advice)
}

/// The text of standard input, up to the size limit.
pub(super) fn standard_text(terminal: &mut Terminal<'_>, most: usize) -> Result<String, Failure> {
    bounded(&mut *terminal.input, Path::new("-"), most, "Check what is written to standard input")
}

/// The text of a stream, up to the size limit.
fn bounded(stream: impl Read, file: &Path, most: usize, advice: &'static str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    stream
        .take(u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|source| Failure::path("read", file, source, advice))?;
    if bytes.len() > most {
        let message =
            format!("found more than {most} bytes, expected no more; split it, or name another file");
        return Err(Failure::input(file.display().to_string(), message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("is not UTF-8 text from byte {at} on; expected YAML or JSON");
        Failure::input(file.display().to_string(), message)
    })
}

fn manifests_in(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let advice = "Check the directory given with -f";
    let fail = |source| Failure::path("list", dir, source, advice);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let known = path.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|k| e == *k));
        if known && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        let message = "has no *.yaml, *.yml or *.json files";
        return Err(Failure::input(dir.display().to_string(), message));
    }
    Ok(files)
}

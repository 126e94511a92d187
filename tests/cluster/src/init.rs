//! Inside the namespaces: PID 1, which mounts the cluster's directories over those of the machine, starts processes on
//! request and reaps the ones that have lost their parents. It ends, and everything with it, at the end of its input.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::captured::Captured;
use crate::wire::{Answer, Numbered, Output, Request, Start};
use crate::{ClusterError, Name, Place};

/// Directories that a cluster has for itself, and where its place keeps them.
const DIRECTORIES: [(&str, &str); 13] = [
    ("/var/lib/kubelet", "kubelet"),
    ("/var/lib/containerd", "containerd"),
    ("/var/lib/cni", "cni-state"),
    ("/var/lib/aliquot", "aliquot"),
    ("/var/log/pods", "pod-logs"),
    ("/var/log/containers", "container-logs"),
    ("/run/containerd", "run-containerd"),
    ("/run/netns", "run-netns"),
    // containerd ends if another one takes its socket for plugins in there.
    ("/run/nri", "run-nri"),
    ("/run/cdi", "run-cdi"),
    ("/run/aliquot", "run-aliquot"),
    ("/etc/cdi", "cdi"),
    ("/etc/cni", "cni"),
];

/// Settings of the kernel that the kubelet wants. It finds them in these files and leaves the machine's alone.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Outside the namespaces: starts init in them, waits until it has ended, and sweeps the place.
///
/// # Errors
/// The place is in use, the namespaces cannot be made, or something stays.
pub fn hold(program: &Path, name: &Name) -> Result<(), ClusterError> {
    let place = Place::new(name);
    let _lock = place.lock()?;
    place.sweep()?;
    place.remove_logs()?;
    place.make()?;
    // `unshare` ends with SIGKILL what it started, should it be killed itself.
    let mut child = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--"])
        .arg(program)
        .args(["init", &name.to_string()])
        .env("ALIQUOT_CLUSTER", place.path(""))
        .spawn()
        .map_err(|error| ClusterError::failed("unshare", error))?;
    let ended = child.wait().map_err(|error| ClusterError::failed("unshare", error))?;
    place.sweep()?;
    if ended.success() {
        return Ok(());
    }
    Err(ClusterError::failed("init", format!("found {ended}, expected success; see {}", place.text("logs"))))
}

/// Inside the namespaces: serves requests from standard input until its end.
///
/// # Errors
/// The mounts cannot be made.
pub fn serve_namespace(name: &Name) -> Result<(), ClusterError> {
    let place = Place::new(name);
    record_own_id(&place)?;
    mount_all(&place, name)?;
    let table = Arc::new(Table { place, inner: Mutex::default(), changed: Condvar::new() });
    let reaper = Arc::clone(&table);
    thread::spawn(move || reaper.reap());
    let out = Arc::new(Mutex::new(io::stdout()));
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(Numbered { id, body }) = serde_json::from_str::<Numbered<Request>>(&line) else { continue };
        let (table, out) = (Arc::clone(&table), Arc::clone(&out));
        thread::spawn(move || {
            let body = table.answer(body);
            let line = serde_json::to_string(&Numbered { id, body }).unwrap_or_default();
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            // Without a reader of the answer, the input is at its end too.
            let _told = writeln!(out, "{line}").and_then(|()| out.flush());
        });
    }
    Ok(())
}

/// Keeps the process ID that init has outside: the mounted `/proc` is still that of the machine.
fn record_own_id(place: &Place) -> Result<(), ClusterError> {
    let path = place.path("init.pid");
    let own =
        fs::read_link("/proc/self").map_err(|error| ClusterError::file(Path::new("/proc/self"), &error))?;
    fs::write(&path, own.display().to_string()).map_err(|error| ClusterError::file(&path, &error))
}

/// Lays the cluster's directories and settings over the machine's.
fn mount_all(place: &Place, name: &Name) -> Result<(), ClusterError> {
    let none: Option<&str> = None;
    let failed = |object: &str| {
        let object = object.to_owned();
        move |error: Errno| ClusterError::failed(object, error)
    };
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(failed("/"))?;
    // A group of mounts of its own, as init makes it on a node: containers mount `/` with `HostToContainer`.
    mount(none, "/", none, MsFlags::MS_SHARED, none).map_err(failed("/"))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).map_err(failed("/proc"))?;
    for (target, source) in DIRECTORIES {
        let source = place.path(source);
        for path in [&source, &PathBuf::from(target)] {
            fs::create_dir_all(path).map_err(|error| ClusterError::file(path, &error))?;
        }
        mount(Some(&source), target, none, MsFlags::MS_BIND, none).map_err(failed(target))?;
        // Mounts that a Pod makes below the kubelet's directory reach the other Pods.
        mount(none, target, none, MsFlags::MS_SHARED, none).map_err(failed(target))?;
    }
    let lay = |target: &str, content: &str, file: &str| {
        let source = place.path(file);
        fs::write(&source, content).map_err(|error| ClusterError::file(&source, &error))?;
        mount(Some(&source), target, none, MsFlags::MS_BIND, none).map_err(failed(target))
    };
    for (setting, value) in SETTINGS {
        let target = format!("/proc/sys/{setting}");
        if Path::new(&target).exists() {
            lay(&target, &format!("{value}\n"), &format!("config/{}", setting.replace('/', ".")))?;
        }
    }
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    lay("/etc/hosts", &format!("127.0.0.1 {name}\n{hosts}"), "config/hosts")
}

/// The processes of the namespace.
#[derive(Debug)]
struct Table {
    place: Place,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// The process of each name.
    named: BTreeMap<String, i32>,
    /// Exit codes of processes that have been reaped.
    ended: HashMap<i32, i32>,
}

impl Table {
    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the exit codes of all processes that end below init, for ever.
    fn reap(&self) {
        loop {
            let (pid, code) = match waitpid(None, None) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(_) => {
                    // No children at the moment: the next one is announced by `changed`.
                    let inner = self.locked();
                    drop(self.changed.wait_timeout(inner, Duration::from_millis(100)));
                    continue;
                }
            };
            self.locked().ended.insert(pid.as_raw(), code);
            self.changed.notify_all();
        }
    }

    fn answer(&self, request: Request) -> Answer {
        let answered = match request {
            Request::Start(start) => self.start(&start).map(Answer::Started),
            Request::End { name, signal, patience_ms } => {
                self.end(&name, signal, Duration::from_millis(patience_ms)).map(Answer::Ended)
            }
            Request::Runs(name) => {
                let inner = self.locked();
                let pid = inner.named.get(&name);
                Ok(Answer::Runs(pid.is_some_and(|pid| !inner.ended.contains_key(pid))))
            }
            Request::Run { start, input, patience_ms } => {
                self.run(&start, &input, Duration::from_millis(patience_ms)).map(Answer::Ran)
            }
        };
        answered.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    fn start(&self, start: &Start) -> Result<i32, ClusterError> {
        let log = self.place.path(&format!("logs/{}.log", start.name));
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let file = open().map_err(|error| ClusterError::file(&log, &error))?;
        let errors = file.try_clone().map_err(|error| ClusterError::file(&log, &error))?;
        let (_child, pid) = self.spawn(start, [Stdio::null(), file.into(), errors.into()])?;
        self.locked().named.insert(start.name.clone(), pid);
        Ok(pid)
    }

    /// Starts a process. The table is locked meanwhile, so that an earlier process of the same ID is forgotten first.
    fn spawn(&self, start: &Start, [input, out, err]: [Stdio; 3]) -> Result<(Child, i32), ClusterError> {
        let Some((program, arguments)) = start.argv.split_first() else {
            return Err(ClusterError::failed(&start.name, "argv: found nothing, expected a program"));
        };
        let mut inner = self.locked();
        let child = Command::new(program)
            .args(arguments)
            .envs(&start.env)
            .stdin(input)
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|error| ClusterError::failed(program, error))?;
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        inner.ended.remove(&pid);
        drop(inner);
        self.changed.notify_all();
        Ok((child, pid))
    }

    fn end(&self, name: &str, signal: i32, patience: Duration) -> Result<i32, ClusterError> {
        let pid = self.locked().named.get(name).copied();
        let pid = pid.ok_or_else(|| {
            ClusterError::failed(name, "found no such process, expected one; start it first")
        })?;
        let signal = Signal::try_from(signal).map_err(|error| ClusterError::failed(name, error))?;
        if self.locked().ended.contains_key(&pid) {
            return self.wait(pid, name, patience);
        }
        kill(Pid::from_raw(pid), signal).map_err(|error| ClusterError::failed(name, error))?;
        self.wait(pid, name, patience)
    }

    fn wait(&self, pid: i32, name: &str, patience: Duration) -> Result<i32, ClusterError> {
        let until = Instant::now() + patience;
        let mut inner = self.locked();
        loop {
            if let Some(code) = inner.ended.get(&pid) {
                return Ok(*code);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("found it running after {} s, expected its end", patience.as_secs());
                return Err(ClusterError::failed(name, message));
            }
            inner = self.changed.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn run(&self, start: &Start, input: &str, patience: Duration) -> Result<Output, ClusterError> {
        let failed = |error: io::Error| ClusterError::failed(&start.name, error);
        let captured = Captured::with_input(input).map_err(failed)?;
        let (_child, pid) = self.spawn(start, captured.streams().map_err(failed)?)?;
        let code = self.wait(pid, &start.name, patience).inspect_err(|_| {
            // Ended meanwhile, or ended by this: either way it runs no more.
            let _ended = kill(Pid::from_raw(pid), Signal::SIGKILL);
        })?;
        Ok(captured.output(code))
    }
}

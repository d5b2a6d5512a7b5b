//! One run: QEMU is started, dom0's frames (or those of Linux alone) are read as they come, QEMU is ended.
//!
//! It never hangs: QEMU runs under timeout(1), silence on the second serial port for
//! longer than a limit ends it, and so does our own death (setpriv's pdeathsig, twice:
//! for timeout and for QEMU). A panic of Xen or of dom0 resets the machine, upon which
//! QEMU ends by itself (-no-reboot) and its end of the port closes.

use crate::Error;
use crate::frames::{Frame, from_hex, is_plain};
use crate::images::{Bed, Images};
use crate::job::Job;
use crate::scratch::Scratch;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
/// How much of the console an error shows.
const CONSOLE_LINES: usize = 12;

/// Limits of a run, in the host's time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until dom0 is up, and between two frames, of which it sends one each 5 emulated
    /// seconds at least.
    pub silence: Duration,
    /// For all of it. Only against a job that never ends: how long one takes is the host's
    /// speed, so a limit near that is a test of the host.
    pub whole: Duration,
    /// Memory of the emulated machine.
    pub memory_mib: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            silence: Duration::from_secs(300),
            whole: Duration::from_secs(1800),
            memory_mib: 3072,
        }
    }
}

/// What is told while a run goes on.
#[derive(Debug)]
pub enum Event<'a> {
    /// dom0 answers, after this time of the host and of the emulated machine.
    Up(Duration, f64),
    /// A case starts.
    Begin(&'a str),
    /// A case has ended.
    Case(&'a Run),
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Its exit status; 124 when its time was up.
    pub status: i32,
    /// Emulated time that it took.
    pub seconds: f64,
    /// The host's time that it took.
    pub host: Duration,
    /// What it wrote.
    pub output: String,
    /// What was found out about a failure.
    pub diagnosis: String,
}

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cases, in their order.
    pub runs: Vec<Run>,
    /// Files that they left in /job/out.
    pub files: Vec<(String, Vec<u8>)>,
    /// Host's time until dom0 was up.
    pub boot: Duration,
}

/// Runs a job. Cases that were not reached when the machine went away are an error, with
/// what was there until then told by `tell`.
pub fn run(
    images: &Images,
    job: &Job,
    limits: Limits,
    tell: &mut dyn FnMut(Event),
) -> Result<Report, Error> {
    let directory = Scratch::new()?;
    let initrd = directory.path().join("initrd");
    job.write(images, &initrd)?;
    let console = directory.path().join("console");
    let started = Instant::now();
    let mut machine = Machine::start(images, &initrd, &console, limits)?;
    let result = follow(&mut machine, started, limits, tell);
    machine.end();
    result.map_err(|what| Error::Machine {
        what,
        console: last_lines(&console),
    })
}

fn follow(
    machine: &mut Machine,
    started: Instant,
    limits: Limits,
    tell: &mut dyn FnMut(Event),
) -> Result<Report, String> {
    let mut report = Report::default();
    let mut begun = started;
    loop {
        let left = limits.whole.saturating_sub(started.elapsed());
        let line = match machine.lines.recv_timeout(left.min(limits.silence)) {
            Ok(line) => line,
            Err(_) if started.elapsed() >= limits.whole => {
                let seconds = limits.whole.as_secs();
                return Err(format!("the job had not ended after {seconds} s"));
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = limits.silence.as_secs();
                return Err(format!("the machine was silent for {seconds} s"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err("the emulated machine went away".to_owned());
            }
        };
        match Frame::parse(&line) {
            None | Some(Frame::Beat) => {}
            Some(Frame::Up { uptime_s }) => {
                report.boot = started.elapsed();
                tell(Event::Up(report.boot, uptime_s));
            }
            Some(Frame::Begin { name }) => {
                begun = Instant::now();
                tell(Event::Begin(&name));
            }
            Some(Frame::Case {
                name,
                status,
                seconds,
                output,
                diagnosis,
            }) => {
                let run = Run {
                    name,
                    status,
                    seconds,
                    host: begun.elapsed(),
                    output,
                    diagnosis,
                };
                tell(Event::Case(&run));
                report.runs.push(run);
            }
            Some(Frame::File { name, hex }) => {
                let bytes = from_hex(&hex).ok_or("a file came damaged")?;
                if !is_plain(&name) {
                    return Err("a file came with a path of its own".into());
                }
                report.files.push((name, bytes));
            }
            Some(Frame::End) => return Ok(report),
        }
    }
}

struct Machine {
    child: Child,
    lines: Receiver<Vec<u8>>,
}

impl Machine {
    fn start(
        images: &Images,
        initrd: &Path,
        console: &Path,
        limits: Limits,
    ) -> Result<Machine, Error> {
        if !on_path(QEMU) {
            return Err(Error::Missing {
                program: QEMU,
                package: "qemu-system-x86",
            });
        }
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "timeout", "--kill-after=5"])
            .arg(limits.whole.as_secs().to_string())
            .args(["setpriv", "--pdeathsig", "KILL", QEMU])
            .args(["-accel", "tcg,thread=single"])
            .args(["-icount", "shift=0,sleep=off"])
            .args(["-M", "q35", "-smp", "1"])
            .args(["-m", &limits.memory_mib.to_string()])
            .args(["-display", "none", "-vga", "none", "-net", "none"])
            .args(["-no-reboot", "-monitor", "none"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", "file:/dev/stdout"])
            .args(boots(images, initrd))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(|_| Error::Missing {
            program: "setpriv",
            package: "util-linux",
        })?;
        let port = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(port).split(b'\n') {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Machine { child, lines })
    }

    fn end(&mut self) {
        // timeout(1) dies, and QEMU with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

/// The CPU, and what is started on it.
fn boots(images: &Images, initrd: &Path) -> Vec<String> {
    let path = |name| images.path(name).display().to_string();
    let initrd = initrd.display();
    let (cpu, kernel, line, initrd) = match images.bed() {
        Bed::Xen => (
            // With SMAP a PV dom0 dies in Xen 4.17's create_bounce_frame under TCG.
            "max,-smap",
            path(Images::XEN),
            // eager-fpu: by default Xen loads a domain's vector registers at the first fault by CR0.TS. Under
            // QEMU 7.2 some instructions do without, and programs of dom0 went on with a guest's registers.
            "console=com1 com1=115200,8n1 dom0_mem=1024M,max:1024M dom0_max_vcpus=1 \
             loglvl=warning guest_loglvl=warning spec-ctrl=eager-fpu",
            format!(
                "{} console=hvc0 nomodeset panic=-1 quiet,{initrd}",
                path(Images::DOM0_KERNEL)
            ),
        ),
        Bed::Linux => (
            // Of a string instruction each repetition counts: the kernel copies by eight bytes at a time then.
            "max,-erms,-fsrm",
            path(Images::ALONE[0]),
            // The clock is the time stamp counter, as on hardware; the kernel does not trust an emulated one.
            "console=ttyS0 panic=-1 quiet tsc=reliable clocksource=tsc",
            initrd.to_string(),
        ),
    };
    let words = [
        "-cpu", cpu, "-kernel", &kernel, "-append", line, "-initrd", &initrd,
    ];
    words.map(str::to_owned).to_vec()
}

pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn last_lines(console: &Path) -> String {
    let text = std::fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let skipped = lines.len().saturating_sub(CONSOLE_LINES);
    lines[skipped..].join(" | ")
}

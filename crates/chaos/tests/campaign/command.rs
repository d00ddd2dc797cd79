//! A client that is the command: `leasehold run` runs programs under the locks of the others. It is a command, its guardian or its program
//! that is paused and killed.
//!
//! A program that runs says that it holds: it knows of no lease, and is to be ended before anybody else holds. What it says is written down
//! by the process that starts the command, so that nothing is lost with it.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use leasehold_chaos::{Event, Mode, Policy, What};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{
    client::Plan,
    kind::{Kind, nanos},
    recorder::{Record, now},
    resource::Write1,
    work::{CATALOG, ORDERS, ORDERS_1},
};

/// A lock that only commands use.
const PROGRAMS: &str = "programs";
/// Half of them among themselves, so that programs run all the time.
const ASKED: [(&str, Mode); 8] = [
    (ORDERS, Mode::Exclusive),
    (ORDERS_1, Mode::Exclusive),
    (CATALOG, Mode::Exclusive),
    (CATALOG, Mode::Shared),
    (PROGRAMS, Mode::Exclusive),
    (PROGRAMS, Mode::Exclusive),
    (PROGRAMS, Mode::Exclusive),
    (PROGRAMS, Mode::Shared),
];
/// How many programs are run or waited for at a time.
const AT_ONCE: u64 = 4;
/// The shortest lease that the command takes.
const SHORTEST: Duration = Duration::from_secs(1);
/// For how long one waits that waits as long as it takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much longer than a lease a program runs at most, and how late it may end on a busy machine.
const LONGER: Duration = Duration::from_secs(4);
const BUSY: Duration = Duration::from_secs(1);
/// What the program is started by: nothing, a shell by which it ends for no SIGTERM, or one that ends before it and leaves it behind. That one
/// keeps what the program's input is.
const SHELLS: [&[&str]; 6] = [
    &[],
    &[],
    &[],
    &["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""],
    &["sh", "-c", "exec 3<&0; \"$0\" \"$@\" <&3 & sleep 0.05"],
    &[
        "sh",
        "-c",
        "trap '' TERM; exec 3<&0; \"$0\" \"$@\" <&3 & sleep 0.05",
    ],
];
/// What the command exits with: what was asked makes no sense to it, the store was not there, the lock was taken, it was lost, the guardian was killed.
const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
const NOT_ACQUIRED: i32 = 75;
const LOST: i32 = 76;
/// The log says so of a program that was ended because its lock was lost, before its number.
pub(super) const HAS_LOST: &str = "lost: ";
const FAILED: i32 = 125;
/// SIGTERM has ended what it waited for, or its program; or SIGKILL has ended that.
const SIGNALLED: i32 = 128 + 15;
const KILLED: i32 = 128 + 9;

/// What the program is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    p: u64,
    op: u64,
    lock: String,
    mode: Mode,
    resource: String,
    /// How often it uses what it holds, and how long it pauses each time.
    uses: u32,
    pause: Duration,
}

fn lease(kind: Kind) -> Duration {
    kind.ttl().max(SHORTEST)
}

/// A time that is so many leases of clients, in as many leases of the command.
pub(crate) fn scaled(kind: Kind, time: Duration) -> Duration {
    time.mul_f64(lease(kind).div_duration_f64(kind.ttl()))
}

/// The command, if it was built.
pub(crate) fn file() -> Option<PathBuf> {
    let file = env::current_exe()
        .ok()?
        .parent()?
        .parent()?
        .join("leasehold");
    file.exists().then_some(file)
}

/// Runs programs until it drains, some at a time.
pub(crate) fn work(plan: &Plan, draining: &watch::Receiver<bool>) {
    thread::scope(|scope| {
        for nth in 0..AT_ONCE {
            // What each of them sees is written in its order.
            let plan = Plan {
                p: plan.p + nth,
                seed: plan.seed + nth,
                ..plan.clone()
            };
            scope.spawn(move || one_by_one(&plan, draining));
        }
    });
}

fn one_by_one(plan: &Plan, draining: &watch::Receiver<bool>) {
    let (record, mut random) = (
        Record::new(&plan.folder, plan.p),
        fastrand::Rng::with_seed(plan.seed),
    );
    for op in plan.p * 1_000_000_000 + 1.. {
        if *draining.borrow() {
            return;
        }
        once(plan, op, &record, &mut random);
        thread::sleep(Duration::from_millis(20).mul_f64(random.f64()));
    }
}

fn once(plan: &Plan, op: u64, record: &Record, random: &mut fastrand::Rng) {
    let (lock, mode) = ASKED[random.usize(0..ASKED.len())];
    let ttl = lease(plan.kind);
    // For how long it waits: not at all, up to a limit, or as long as it takes.
    let limit = match random.u8(0..4) {
        0 => Some(Duration::ZERO),
        1 => Some(ttl.mul_f64(2.0 * random.f64())),
        _ => None,
    };
    // Who waits up to a limit leaves the queue before its process ends, and nobody may expect it there.
    let policy = match limit {
        Some(_) => Policy::Try,
        None if plan.kind.is_complete() => Policy::Fair,
        None => Policy::Fast,
    };
    let waits = limit != Some(Duration::ZERO);
    let (ms, label) = (format!("{}ms", ttl.as_millis()), format!("op-{op}"));
    let mut command = Command::new(file().unwrap());
    command.args(["run", lock, "--quiet", "--ttl", &ms, "--label", &label]);
    if mode == Mode::Shared {
        command.arg("--shared");
    }
    match limit {
        Some(_) if !waits => drop(command.arg("--no-wait")),
        _ => drop(command.args([
            "--wait",
            &format!("{}ms", limit.unwrap_or(PATIENCE).as_millis()),
        ])),
    }
    // For a moment, or up to longer than a lease: one that outlives its lock shows only then.
    let length = if random.bool() {
        (4 * ttl).min(ttl + LONGER)
    } else {
        ttl / 4
    };
    let (uses, pause) = (20, length.mul_f64(random.f64()) / 20);
    let job = Job {
        p: plan.p,
        op,
        lock: lock.into(),
        mode,
        resource: plan.resource.clone(),
        uses,
        pause,
    };
    command
        .arg("--")
        .args(random.choice(SHELLS).unwrap().iter());
    command
        .arg(env::current_exe().unwrap())
        .arg("program")
        .arg(serde_json::to_string(&job).unwrap());
    command
        .env("LEASEHOLD_STORE", &plan.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // Its limit counts from when it asks: how long a process takes to begin and to end is not judged.
    let deadline = limit.filter(|_| waits).map(|_| u64::MAX);
    record.now(What::Invoke {
        op,
        lock: lock.into(),
        mode,
        policy,
        deadline,
        owner: None,
    });
    let (last, status, died) = run(command, record);
    // It may be asked to end, and is killed soon.
    if let Some((t, _)) = last
        .as_ref()
        .filter(|(t, _)| *t > died + nanos(ttl / 5 + BUSY))
    {
        eprintln!(
            "UNEXPECTED: the program of {op} ran {} ms after its command had ended",
            (t - died) / 1_000_000
        );
    }
    if status.code() == Some(LOST) {
        eprintln!("{HAS_LOST}{op}");
    }
    match last.map(|(_, what)| what) {
        None => record.now(refusal(plan.kind, op, waits, status)),
        Some(What::Release { .. }) => {}
        Some(_) => record.now(What::Release { op, dropped: true }),
    }
}

/// Runs the command, and notes what its program says. The last of it, how the command ended, and when that was.
fn run(mut command: Command, record: &Record) -> (Option<(u64, What)>, ExitStatus, u64) {
    let mut child = command.spawn().unwrap();
    // The program ends when this is closed.
    let stdin = child.stdin.take();
    // When the command ended, beside what its program says.
    let stdout = child.stdout.take().unwrap();
    let ended = thread::spawn(move || (child.wait().unwrap(), now()));
    let mut last = None;
    for line in BufReader::new(stdout).lines() {
        let event: Event = serde_json::from_str(&line.unwrap()).unwrap();
        record.at(event.t, event.what.clone());
        last = Some((event.t, event.what));
    }
    let (status, died) = ended.join().unwrap();
    drop(stdin);
    (last, status, died)
}

/// No program was run.
fn refusal(kind: Kind, op: u64, waited: bool, status: ExitStatus) -> What {
    match status.code() {
        Some(NOT_ACQUIRED) => return What::Fail { op, busy: !waited },
        Some(UNAVAILABLE) => return What::Fail { op, busy: false },
        // It was killed, or what it had was lost before the program began.
        Some(LOST | FAILED) | None => {}
        // Or it was left behind, or ended by a signal, before it said anything.
        Some(0 | SIGNALLED | KILLED) => {}
        // Two addresses led to one node.
        Some(USAGE) if kind == Kind::Redlock => {}
        Some(USAGE) => eprintln!(
            "UNEXPECTED: it lacks the store; `cargo build -p leasehold-cli --all-features`"
        ),
        Some(_) => eprintln!("UNEXPECTED of the command: {status}"),
    }
    What::Info { op }
}

/// The program: it uses what its command holds.
pub(crate) fn program(job: &Job) {
    thread::spawn(|| {
        // Whoever started it has ended.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let tok = env::var("LEASEHOLD_FENCING_TOKEN")
        .unwrap()
        .parse()
        .unwrap();
    let mut stdout = io::stdout();
    let mut say = |t, what| {
        let mut line = serde_json::to_vec(&Event::new(t, job.p, what)).unwrap();
        line.push(b'\n');
        // One call: no part of it is said by one that is killed.
        stdout.write_all(&line).unwrap();
        stdout.flush().unwrap();
    };
    let op = job.op;
    let mut resource = TcpStream::connect(&job.resource).unwrap();
    let t = now();
    say(
        t,
        What::Ok {
            op,
            tok,
            valid: t + 1,
        },
    );
    for _ in 0..job.uses {
        if job.mode.is_exclusive() {
            let write = Write1 {
                op,
                lock: job.lock.clone(),
                tok,
                fenced: true,
            };
            writeln!(resource, "{}", serde_json::to_string(&write).unwrap()).unwrap();
            BufReader::new(&resource)
                .read_line(&mut String::new())
                .unwrap();
        }
        let t = now();
        say(t, What::Use { op, valid: t + 1 });
        thread::sleep(job.pause);
    }
    say(now(), What::Release { op, dropped: true });
}

/// The commands, guardians and programs that there are just now, under the process that starts them. `run`: of those that run a program, if
/// there are such.
pub(crate) fn processes(of: Pid, run: bool) -> Vec<Pid> {
    let trees: Vec<Vec<Pid>> = children(of).into_iter().map(with_all_below).collect();
    // Without a program there is a command and its guardian.
    let runs = |tree: &&Vec<Pid>| tree.len() > 2;
    let only = run && trees.iter().any(|tree| runs(&tree));
    trees
        .iter()
        .filter(|tree| !only || runs(tree))
        .flatten()
        .copied()
        .collect()
}

fn with_all_below(of: Pid) -> Vec<Pid> {
    children(of)
        .into_iter()
        .fold(vec![of], |all, child| [all, with_all_below(child)].concat())
}

fn children(of: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{of}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| Vec::from_iter(list.split_whitespace().filter_map(pid)))
        .collect()
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// One that has ended meanwhile needs no signal.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

//! One campaign on one store: servers, processes, faults, and the verdict.

use std::{
    fmt::Write,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use leasehold::StoreId;
use leasehold_chaos::{
    Checker, Disorder, Event, History, Invariant, Ordered, Report, What, order, timeline,
};
use leasehold_testbed::Proxy;

use super::{
    client::Plan,
    clients::{PIN, Resource, Slot},
    clock::Clock,
    command, counter, deployments,
    faults::{Choice, Fault},
    kind::{self, Kind, NAIVE_FROM},
    nemesis::{LONG, Nemesis},
    recorder::Record,
    servers::Servers,
    work::NAIVE,
};

/// How long a client may take to end what is under way, beyond the time in which the store settles.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// How often a campaign goes on for two leases because its naive clients were not caught.
const MORE: u32 = 60;
/// What the counter of a database came to, for the verdict.
const COUNTED: &str = "counted.txt";
/// Fewer grants show nothing.
const FEW: u64 = 20;
/// How much longer than a store says a dead holder may be in the way on a busy machine.
const BUSY: Duration = Duration::from_secs(1);
/// Which client is one of another library, if there is one.
const FOREIGN: u64 = 3;
/// Which one is the command, if that was built.
const COMMAND: u64 = 4;

pub(crate) struct Verdict {
    pub(crate) text: String,
    pub(crate) passed: bool,
    pub(crate) outcome: Outcome,
}

/// What came of it, in numbers.
pub(crate) struct Outcome {
    pub(crate) report: Report,
    /// What the naive clients did: held together, and wrote what was stale.
    pub(crate) overlaps: usize,
    pub(crate) stale: usize,
    pub(crate) seconds: u64,
    /// The machine's clock was stepped.
    pub(crate) is_void: bool,
}

/// Runs a campaign for so long. The histories of one that fails are kept in `folder`.
pub(crate) async fn run(
    kind: Kind,
    seed: u64,
    time: Duration,
    choice: &Choice,
    folder: &Path,
) -> Verdict {
    fs::create_dir_all(folder).unwrap();
    let begin = now();
    let clock = Clock::default();
    let mut troubles = tokio::select! {
        troubles = campaign(kind, seed, time, choice, folder) => troubles,
        () = clock.watch() => unreachable!("it never ends"),
    };
    let void = clock.trouble().filter(|_| kind.is_by_wall_clock());
    let is_void = void.is_some();
    troubles.extend(void);
    let (report, control) = check(folder);
    draw(folder, &report);
    let seconds = now().duration_since(begin).as_secs();
    let (overlaps, stale) = (control.of(Invariant::I1), control.of(Invariant::I2));
    let outcome = Outcome {
        report,
        overlaps,
        stale,
        seconds,
        is_void,
    };
    let (text, passed) = verdict(kind, seed, folder, &outcome, troubles, time >= LONG);
    if passed {
        fs::remove_dir_all(folder).unwrap();
    }
    Verdict {
        text,
        passed,
        outcome,
    }
}

async fn campaign(
    kind: Kind,
    seed: u64,
    time: Duration,
    choice: &Choice,
    folder: &Path,
) -> Vec<String> {
    let servers = Servers::start(kind, seed).await;
    let record = Record::new(folder, 0);
    record.now(What::Begin {
        store: kind.name().into(),
        seed,
        limits: kind.limits(),
    });
    let resource = Resource::start(folder).await;
    let mut clients = Vec::new();
    let command = has_command(kind).then_some(COMMAND);
    let further = COMMAND + 1..COMMAND + 1 + kind.further();
    let setting = Setting {
        kind,
        seed,
        pin: deployments::pin(kind, seed, &servers).await,
        servers: &servers,
        resource: &resource,
        folder,
    };
    for n in (0..kind.clients(seed)).chain(command).chain(further) {
        clients.push(setting.slot(n, false).await);
    }
    let mut naive = Vec::new();
    // What is in memory is of one process: the naive tasks are in the same one.
    for n in 0..if kind == Kind::Memory { 0 } else { 2 } {
        naive.push(setting.slot(n, true).await);
    }
    let nemesis = Nemesis::new(kind, seed, choice, &record, &servers, &clients, &naive).await;
    let (mut slice, mut more, mut rages) = (time, MORE, true);
    loop {
        let rage = async {
            if rages {
                nemesis.rage(slice).await;
            }
        };
        tokio::join!(rage, nemesis.pause_naive(slice));
        // It goes on until the naive clients were caught, and others were granted something: it shows nothing before.
        let (report, control) = check(folder);
        let caught = is_caught(&control)
            && servers
                .counted()
                .await
                .is_none_or(|counted| counted.is_caught());
        if more == 0 || caught && report.figures.grants >= FEW {
            break;
        }
        (slice, more) = (2 * kind.ttl(), more - 1);
        // What other faults excuse is not caught: from here on there are none, but in the one process of a store in memory.
        rages = naive.is_empty();
    }
    nemesis.end().await;
    let within = kind.settle() + ENDS_WITHIN;
    let ends =
        futures_util::future::join_all(clients.iter().chain(&naive).map(|slot| slot.drain(within)))
            .await;
    let mut troubles: Vec<String> = ends.into_iter().filter_map(Result::err).collect();
    if !troubles.is_empty() {
        fs::write(folder.join("store.txt"), servers.dump().await).unwrap();
    }
    drop((clients, naive));
    if choice.is_only(Fault::RefuseConnections) {
        // The connections that a client has are enough for what it holds.
        let lost = expired(folder);
        troubles.extend((lost > 0).then(|| format!("{lost} holds ended beside idle connections")));
    }
    if let Some(counted) = servers.counted().await {
        troubles.extend(counted.troubles());
        fs::write(
            folder.join(COUNTED),
            format!("{counted}; not committed:{}", counter::refused(folder)),
        )
        .unwrap();
        if !counted.wrong.is_empty() {
            fs::write(folder.join("counter-wrong.txt"), &counted.wrong).unwrap();
        }
    }
    for (name, left, allowed) in servers.left(kind.settle() + kind.leaves()).await {
        record.now(What::Kv {
            name,
            left,
            allowed,
        });
    }
    record.now(What::End);
    for (nth, server) in servers.all().iter().enumerate() {
        // Not each has written one.
        let _ = fs::copy(
            server.data().with_file_name("server.log"),
            folder.join(format!("server-{nth}.txt")),
        );
    }
    troubles
}

/// Whether there are programs that the command runs.
fn has_command(kind: Kind) -> bool {
    kind.runs_commands() && command::file().is_some()
}

/// Whether naive clients have held together, and have written what is stale.
fn is_caught(control: &Report) -> bool {
    control.of(Invariant::I1) > 0 && control.of(Invariant::I2) > 0
}

/// All clients of a campaign have this in common.
struct Setting<'a> {
    kind: Kind,
    seed: u64,
    servers: &'a Servers,
    /// The identity of the store, if servers of other ones are about.
    pin: Option<StoreId>,
    resource: &'a Resource,
    folder: &'a Path,
}

impl Setting<'_> {
    async fn slot(&self, n: u64, naive: bool) -> Slot {
        let proxies = self.servers.proxies().await;
        // One client goes by what it has seen, where that is enough.
        let is_pinned = n != FOREIGN && (n != 1 || naive || self.kind.needs_pin());
        let by = |proxies: &[Proxy]| {
            let addresses = proxies.iter().map(|proxy| proxy.addr().to_owned());
            let url = self.servers.url(addresses);
            match self.pin.as_ref().filter(|_| is_pinned) {
                Some(id) => format!("{url}{PIN}{id}"),
                None => url,
            }
        };
        // A client of each member alone, where each of them is the store: or two of the same.
        let relays = match self.kind {
            _ if n != 2 || naive => Vec::new(),
            Kind::EtcdCluster | Kind::Ensemble => proxies.chunks(1).map(by).collect(),
            _ => vec![by(&proxies), by(&proxies)],
        };
        let plan = Plan {
            p: Slot::first(n, naive),
            kind: self.kind,
            url: by(&proxies),
            folder: self.folder.into(),
            resource: self.resource.address.clone(),
            seed: self
                .seed
                .wrapping_mul(31)
                .wrapping_add(n + if naive { 100 } else { 0 }),
            leases: kind::times(),
            tasks: if naive || n > COMMAND {
                1
            } else {
                self.kind.tasks()
            },
            naive,
            // One of them blocks no renewal even if its runtime is blocked.
            own_thread: n == 1 && !naive,
            lodgers: n == 0 && !naive,
            relays,
            foreign: n == FOREIGN && !naive,
            command: n == COMMAND,
        };
        Slot::start(plan, proxies)
    }
}

/// Judges the history in a folder: that of the clients, and that of the naive ones beside it.
pub(crate) fn check(folder: &Path) -> (Report, Report) {
    let (mut clients, mut naive) = (Checker::default(), Checker::default());
    for event in History::in_folder(folder).unwrap() {
        let event = event.unwrap();
        match belongs(&event) {
            Some(false) => clients.event(&event),
            Some(true) => naive.event(&event),
            None => {
                clients.event(&event);
                naive.event(&event);
            }
        }
    }
    (clients.finish(), naive.finish())
}

/// The second opinion: whether what happened to each lock has an order.
pub(crate) fn ordered(folder: &Path) -> Result<Ordered, Disorder> {
    let events = History::in_folder(folder).unwrap().map(Result::unwrap);
    order(events.filter(|event| belongs(event) != Some(true)))
}

/// Draws the first violations, a page for each.
pub(crate) fn draw(folder: &Path, report: &Report) {
    for (n, violation) in report.violations.iter().take(5).enumerate() {
        let events = History::in_folder(folder).unwrap().map(Result::unwrap);
        let page = timeline(
            violation,
            events.filter(|event| belongs(event) != Some(true)),
        );
        fs::write(folder.join(format!("violation-{n}.html")), page).unwrap();
    }
}

/// Whether an event is about naive clients, or about both.
fn belongs(event: &Event) -> Option<bool> {
    match &event.what {
        What::Accept { lock, .. } | What::Reject { lock, .. } => Some(lock == NAIVE),
        What::Fault { id, .. } | What::Healed { id } if *id >= NAIVE_FROM => Some(true),
        What::Fault { .. }
        | What::Healed { .. }
        | What::Begin { .. }
        | What::End
        | What::Kv { .. } => None,
        What::Killed { target } => Some(*target >= NAIVE_FROM),
        _ => Some(event.p >= NAIVE_FROM),
    }
}

fn verdict(
    kind: Kind,
    seed: u64,
    folder: &Path,
    outcome: &Outcome,
    mut troubles: Vec<String>,
    is_long: bool,
) -> (String, bool) {
    let Outcome {
        report,
        overlaps,
        stale,
        seconds,
        ..
    } = outcome;
    troubles.extend(complaints(folder));
    if !report.is_clean() {
        troubles.push(format!("{} violations", report.count));
    }
    let (took, promised) = (
        Duration::from_nanos(report.calm_recovery.max()),
        kind.in_the_way() + BUSY,
    );
    if took > promised {
        troubles.push(format!(
            "a dead holder was in the way for {took:?}, and may be for {promised:?}"
        ));
    }
    if report.figures.grants < FEW {
        troubles.push(format!("void: only {} grants", report.figures.grants));
    }
    if *overlaps == 0 || *stale == 0 {
        troubles.push("void: the naive clients were not caught".into());
    }
    let mut text = format!("{}: seed {seed}, {seconds} s\n{report}", kind.name());
    // A string takes everything.
    let _ = write!(
        text,
        "\ncontrol: {overlaps} overlaps and {stale} stale writes of naive clients"
    );
    if kind.has_foreign(seed) {
        let granted = grants_of(FOREIGN, folder);
        let _ = write!(text, "\nclient of another library: {granted} grants");
        if granted == 0 && is_long {
            troubles.push("void: a client of another library was granted nothing".into());
        }
    }
    if has_command(kind) {
        let granted = grants_of(COMMAND, folder);
        let _ = write!(text, "\nthe command: {granted} programs were run");
        if granted == 0 && is_long {
            troubles.push("void: the command has run nothing".into());
        }
    } else if kind.runs_commands() {
        text.push_str("\nthe command was not built, and runs nothing");
    }
    if let Ok(counted) = fs::read_to_string(folder.join(COUNTED)) {
        let _ = write!(text, "\ncounter: {counted}");
    }
    match ordered(folder) {
        Ok(ordered) => drop(write!(text, "\norder: {}", of_order(ordered))),
        Err(none) if is_long => troubles.push(format!("no order: {none}")),
        Err(none) => drop(write!(text, "\nno order: {none}")),
    }
    if troubles.is_empty() {
        return (text, true);
    }
    // The reasons come first: a summary of many tests repeats only the beginning.
    let mut reasons = String::new();
    for trouble in &troubles {
        let _ = writeln!(reasons, "FAILED: {trouble}");
    }
    let (folder, name) = (folder.display(), kind.name());
    let _ = writeln!(
        reasons,
        "kept: {folder}; again: cargo xtask chaos --store {name} --seed {seed}"
    );
    (reasons + &text, false)
}

pub(crate) fn of_order(ordered: Ordered) -> String {
    let Ordered {
        pieces,
        steps,
        too_long,
        excused,
        ..
    } = ordered;
    format!(
        "{pieces} pieces of locks have one ({steps} steps), {too_long} are too long, {excused} beside faults that break exclusion"
    )
}

/// How often this client was granted a lock.
fn grants_of(client: u64, folder: &Path) -> usize {
    let (from, to) = (Slot::first(client, false), Slot::first(client + 1, false));
    let events = History::in_folder(folder).unwrap().map(Result::unwrap);
    events
        .filter(|event| (from..to).contains(&event.p) && matches!(event.what, What::Ok { .. }))
        .count()
}

/// How many holds ended because their leases were not renewed in time, those of the command's programs among them.
fn expired(folder: &Path) -> usize {
    let events = History::in_folder(folder).unwrap().map(Result::unwrap);
    let of_clients = events
        .filter(|event| belongs(event) == Some(false))
        .filter(|event| matches!(&event.what, What::Lost { why, .. } if why == "Expired"))
        .count();
    let of_programs = logs(folder)
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter(|line| line.starts_with(command::HAS_LOST))
        .count();
    of_clients + of_programs
}

/// The logs of the processes, by their names.
fn logs(folder: &Path) -> Vec<(String, String)> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "log") {
            let name = path.file_name().unwrap_or_default();
            let text = fs::read_to_string(&path).unwrap_or_default();
            logs.push((name.to_string_lossy().into_owned(), text));
        }
    }
    logs
}

/// What processes wrote to their logs and should not have.
fn complaints(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in logs(folder) {
        let bad = text
            .lines()
            .filter(|line| line.contains("UNEXPECTED") || line.contains("panicked"));
        found.extend(bad.take(3).map(|line| format!("{name}: {line}")));
    }
    found
}

#[allow(clippy::disallowed_methods, reason = "how long a run took")]
fn now() -> Instant {
    Instant::now()
}

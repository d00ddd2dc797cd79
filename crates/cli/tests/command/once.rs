//! `leasehold once`: work that is done once, its record, and `forget`. Through the binary.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_testbed::{Proxy, Redis};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, Running, Stage, campaign, code, json, leasehold, output, text, until};

on!(redis, sqlite, postgres, etcd, zookeeper: one_run_a_fire);
on!(redis, sqlite, postgres, etcd, zookeeper: who_waits_is_told);
on!(redis, sqlite: exit_codes);
on!(redis, sqlite: the_record_is_shown_and_forgotten);
on!(redis, sqlite: records_and_holds_are_one_list);
on!(redis, sqlite: signals);
on!(redis, sqlite: a_lost_hold_is_not_done);
on!(redis, sqlite: who_would_wait_for_itself_is_told);

/// A program that writes a line for each of its runs.
struct Log {
    folder: TempDir,
}

impl Log {
    fn new() -> Log {
        Log {
            folder: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `-- sh -c`, with a script that writes a line and goes on with this one, in which `$D` is the
    /// folder.
    fn program(&self, script: &str) -> [String; 4] {
        let folder = self.folder.path().display();
        let script = format!("D={folder}; echo $LEASEHOLD_NAME >> $D/runs; {script}");
        ["--", "sh", "-c", &script].map(String::from)
    }

    fn runs(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("runs")).unwrap_or_default();
        text.lines().map(String::from).collect()
    }
}

/// `leasehold once WORDS --ttl … -- PROGRAM`.
fn once(stage: &Stage, words: &[&str], program: &[String]) -> Command {
    let ttl = format!("{}ms", stage.ttl.as_millis());
    let mut command = stage.leasehold(["once"]);
    command.args(words).args(["--ttl", &ttl]).args(program);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn until_there(file: &Path) {
    until("a file", || file.exists().then_some(()));
}

/// The words for the fire of this period that is due now, whenever its processes start.
fn fire(period: Duration) -> [String; 4] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let offset = now.as_secs() % period.as_secs();
    let [period, offset] = [period.as_secs(), offset].map(|secs| format!("{secs}s"));
    ["--every".into(), period, "--offset".into(), offset]
}

/// Twelve processes start for each fire, and one of them runs the job. The shorter a period, the
/// later is the fire that is due now.
async fn one_run_a_fire(stage: &Stage) {
    let log = Log::new();
    let mut period = Duration::from_secs(100_000);
    for fires in 1..=campaign(4, 40) {
        period -= Duration::from_secs(10);
        let every = fire(period);
        let words: Vec<&str> = ["job", "-q"]
            .into_iter()
            .chain(every.iter().map(String::as_str))
            .collect();
        let started: Vec<Running> = (0..12)
            .map(|_| Running::start(&mut once(stage, &words, &log.program("true"))))
            .collect();
        for mut one in started {
            let status = one.end().code();
            assert!(matches!(status, Some(0 | 75)), "{status:?}");
        }
        assert_eq!(log.runs().len(), fires, "of fire {fires}");
        let late = code(&mut once(stage, &words, &log.program("true")));
        assert_eq!(late, Some(0), "it is done");
        assert_eq!(log.runs().len(), fires, "of a late process of fire {fires}");
    }
    // One record serves for all fires.
    let (_, all) = json(&mut stage.leasehold(["ls", "--json"]));
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
}

/// Replicas that start at once: one migrates, and the others go on when it has. If it fails, the
/// next one migrates.
async fn who_waits_is_told(stage: &Stage) {
    let log = Log::new();
    let script = "[ -e $D/failed ] && exit; while [ ! -e $D/go ]; do sleep 0.01; done; \
                  : > $D/failed; exit 5";
    let mut first = Running::start(&mut once(stage, &["schema"], &log.program(script)));
    stage.until_queue("schema", 1, 0);
    let start = |_| {
        let words = ["schema", "--wait", "--label", "replica"];
        Running::start(&mut once(stage, &words, &log.program(script)))
    };
    let waiting: Vec<Running> = (0..4).map(start).collect();
    stage.until_queue("schema", 1, 4);
    let words = ["schema", "--wait", "1500ms"];
    let too_long = output(&mut once(stage, &words, &log.program(script)));
    assert_eq!(too_long.status.code(), Some(75), "{}", said(&too_long));
    fs::write(log.path("go"), "").unwrap();
    assert_eq!(first.end().code(), Some(5));
    for mut one in waiting {
        assert_eq!(one.end().code(), Some(0));
    }
    assert_eq!(log.runs(), ["schema"; 2]);
    assert_eq!(stage.who("schema")["done"]["label"], "replica");
}

async fn exit_codes(stage: &Stage) {
    let log = Log::new();
    let run = |words: &[&str], script: &str| code(&mut once(stage, words, &log.program(script)));
    for (script, expected) in [
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        assert_eq!(run(&["job"], script), Some(expected), "{script}");
    }
    let over = run(&["job", "--max-hold", "300ms"], "sleep 1000");
    assert_eq!(over, Some(124));
    assert_eq!(log.runs().len(), 5, "none of them was done");
    assert_eq!(run(&["job"], "true"), Some(0));
    assert_eq!(run(&["job"], "true"), Some(0));
    assert_eq!(run(&["job", "--done-code", "3"], "true"), Some(3));
    assert_eq!(run(&["job", "--done-code", "3", "--wait"], "true"), Some(3));
    assert_eq!(log.runs().len(), 6);
    // A key is work of its own, and so is its absence.
    assert_eq!(run(&["job", "--key", "a/b"], "true"), Some(0));
    assert_eq!(log.runs()[6..], ["job/a/b"]);
    // A lock of the name ignores the record.
    assert_eq!(code(&mut stage.run("job", ["-n", "--", "true"])), Some(0));

    let _holder = Running::start(&mut stage.run("busy", ["--", "sleep", "1000"]));
    stage.until_queue("busy", 1, 0);
    let refused = output(&mut once(stage, &["busy"], &log.program("true")));
    assert_eq!(refused.status.code(), Some(75));
    assert!(said(&refused).contains("held by"), "{}", said(&refused));
    let refused = output(&mut once(stage, &["busy", "-qE9"], &log.program("true")));
    assert_eq!(
        (refused.status.code(), said(&refused)),
        (Some(9), "".into())
    );
    assert_eq!(log.runs().len(), 7);
}

/// A record is told by `once`, `who` and `ls`, and the work is done again when it is forgotten.
async fn the_record_is_shown_and_forgotten(stage: &Stage) {
    let log = Log::new();
    let file = log.path("result").display().to_string();
    let words = [
        "job",
        "--result",
        &file,
        "--keep",
        "1h",
        "--label",
        "me\x1b[2J",
    ];
    let script = r"printf '17 \033[2J\n\n' > $D/result";
    let ran = output(&mut once(stage, &words, &log.program(script)));
    assert_eq!((ran.status.code(), said(&ran)), (Some(0), "".into()));

    let (status, who) = json(&mut stage.leasehold(["who", "job", "--json"]));
    let done = &who["done"];
    assert_eq!(status, Some(1), "the lock is free");
    assert_eq!(done["result"], "17 \x1b[2J");
    assert_eq!((&done["fire"], &done["cut"]), (&0.into(), &false.into()));
    let left = done["left_ms"].as_u64().unwrap();
    assert!(left > 3_000_000 && left <= 3_600_000, "{left}");
    assert!(done["at"].as_str().unwrap().starts_with("20"), "{done}");
    let token = done["token"].as_u64().unwrap().to_string();
    for words in [&["who", "job"][..], &["ls"], &["ls", "jo"]] {
        let shown = text(&mut stage.leasehold(words.iter().copied()));
        assert!(
            shown.contains(&token) && shown.contains(r#""17 \u{1b}[2J""#) && shown.contains("59m"),
            "{shown}"
        );
        assert!(!shown.contains('\x1b'), "{shown:?}");
    }
    let again = output(&mut once(stage, &["job"], &log.program("true")));
    let told = said(&again);
    assert_eq!(again.status.code(), Some(0));
    for part in ["is done", "by me", "s ago", &token, r#""17 \u{1b}[2J""#] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(
        told.lines().count() == 1 && !told.contains('\x1b'),
        "{told:?}"
    );
    let again = output(&mut once(stage, &["job", "-q"], &log.program("true")));
    assert_eq!((again.status.code(), said(&again)), (Some(0), "".into()));
    assert_eq!(log.runs().len(), 1);

    let forget = |words: &[&str]| {
        stage.leasehold(["forget", "job"].into_iter().chain(words.iter().copied()))
    };
    assert_eq!(code(&mut forget(&["1"])), Some(1));
    assert_eq!(code(&mut forget(&[])), Some(64));
    assert_eq!(code(&mut forget(&[&token, "--token", &token])), Some(64));
    assert_eq!(
        code(&mut stage.leasehold(["break", "job", &token])),
        Some(1)
    );
    assert_eq!(
        stage.who("job")["done"]["label"],
        "me\x1b[2J",
        "it is still there"
    );
    let (status, forgotten) = json(&mut forget(&["--token", &token, "--json"]));
    assert_eq!((status, &forgotten["forgotten"]), (Some(0), &true.into()));
    assert_eq!(code(&mut forget(&[&token])), Some(1), "once is enough");
    assert_eq!(stage.who("job")["done"], Value::Null);
    assert_eq!(
        code(&mut once(stage, &["job"], &log.program("true"))),
        Some(0)
    );
    assert_eq!(log.runs().len(), 2);
}

async fn records_and_holds_are_one_list(stage: &Stage) {
    let log = Log::new();
    for name in ["a", "c", "e"] {
        assert_eq!(
            code(&mut once(stage, &[name], &log.program("true"))),
            Some(0)
        );
    }
    let hold = |name| Running::start(&mut stage.run(name, ["--", "sleep", "1000"]));
    let _holders = ["b", "c"].map(hold);
    for name in ["b", "c"] {
        stage.until_queue(name, 1, 0);
    }
    let list = |words: &[&str]| {
        let words = ["ls", "--json"].into_iter().chain(words.iter().copied());
        let output = output(&mut stage.leasehold(words));
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |it: &Value| {
            let held = it["holders"].as_array().unwrap().len();
            let done = i32::from(!it["done"].is_null());
            format!("{}{held}{done}", it["name"].as_str().unwrap())
        };
        let all: Vec<String> = all.as_array().unwrap().iter().map(of).collect();
        (all.join(" "), said(&output))
    };
    assert_eq!(list(&[]), ("a01 b10 c11 e01".into(), String::new()));
    let (first, told) = list(&["--limit", "3"]);
    assert_eq!(first, "a01 b10 c11");
    assert!(told.contains("--after \"c\""), "{told}");
    assert_eq!(list(&["--after", "c"]).0, "e01");
    assert_eq!(list(&["e"]).0, "e01");
    let shown = text(&mut stage.leasehold(["ls"]));
    let lines: Vec<&str> = shown.lines().collect();
    let heads = |at: usize, word: &str| lines[at].starts_with(word);
    assert_eq!(lines.len(), 8, "{shown}");
    assert!(
        heads(0, "NAME") && heads(1, "b ") && heads(2, "c "),
        "{shown}"
    );
    assert!(
        lines[3].is_empty() && heads(4, "DONE") && heads(5, "a "),
        "{shown}"
    );
    assert!(lines[5].contains("ever"), "{shown}");
    let shown = text(&mut stage.leasehold(["who", "c"]));
    assert!(shown.contains("holds") && shown.contains("DONE"), "{shown}");
}

/// A signal that ends the program is no failure to try again, and nothing is done.
async fn signals(stage: &Stage) {
    let log = Log::new();
    let script = ": > $D/ready; exec sleep 1000";
    let words = ["job", "--retries", "5"];
    let mut first = Running::start(&mut support::afresh(&once(
        stage,
        &words,
        &log.program(script),
    )));
    until_there(&log.path("ready"));
    let waits = once(stage, &["job", "--wait"], &log.program("true"));
    let mut waits = Running::start(&mut support::afresh(&waits));
    stage.until_queue("job", 1, 1);
    waits.signal(Signal::TERM);
    assert_eq!(waits.end().signal(), Some(15));
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(143));
    assert_eq!(log.runs().len(), 1);
    // A signal that the program obeys with a good end is a good end.
    let script = "trap 'exit 0' TERM; : > $D/obeys; while :; do sleep 0.01; done";
    let obeys = once(stage, &["job"], &log.program(script));
    let mut obeys = Running::start(&mut support::afresh(&obeys));
    until_there(&log.path("obeys"));
    obeys.signal(Signal::TERM);
    assert_eq!(obeys.end().code(), Some(0));
    assert!(stage.who("job")["done"].is_object());
    // During the pause before a retry there is no program, and the signal is the command's.
    let words = ["other", "--retries", "5"];
    let said = log.path("said");
    let mut pauses = support::afresh(&once(stage, &words, &log.program("exit 3")));
    let mut pauses = Running::start(pauses.stderr(fs::File::create(&said).unwrap()));
    let told = || fs::read_to_string(&said).unwrap();
    // The second pause is long enough for a busy machine.
    until("a second retry", || {
        told().contains("retry 2 of 5").then_some(())
    });
    pauses.signal(Signal::TERM);
    assert_eq!(pauses.end().signal(), Some(15));
    assert!(told().contains("exit code 3"), "{}", told());
    assert_eq!(stage.queue("other"), (0, 0), "{}", told());
    assert_eq!(stage.who("other")["done"], Value::Null);
}

async fn a_lost_hold_is_not_done(stage: &Stage) {
    let log = Log::new();
    let mut first = once(
        stage,
        &["job", "--retries", "5"],
        &log.program("exec sleep 1000"),
    );
    let mut first = Running::start(&mut first);
    let token = stage.token("job");
    until("the program", || (log.runs().len() == 1).then_some(()));
    assert_eq!(stage.evict("job", token), Some(0));
    assert_eq!(first.end().code(), Some(76));
    assert_eq!(stage.who("job")["done"], Value::Null);
    // A program that ends well when its hold has ended already is not done either.
    let script = format!(
        "{} break job $LEASEHOLD_FENCING_TOKEN",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let mut own = once(stage, &["job"], &log.program(&script));
    let own = output(&mut own);
    assert_eq!(own.status.code(), Some(76), "{}", said(&own));
    assert_eq!(stage.who("job")["done"], Value::Null);
    assert_eq!(
        code(&mut once(stage, &["job"], &log.program("true"))),
        Some(0)
    );
    assert_eq!(log.runs().len(), 3);
}

async fn who_would_wait_for_itself_is_told(stage: &Stage) {
    let binary = env!("CARGO_BIN_EXE_leasehold");
    for (outer, inner, expected) in [
        ("once job", "once job", 64),
        ("once job", "once job --wait", 64),
        ("once job", "run job", 64),
        ("once job", "elect job", 64),
        ("once job --key a", "once job --key a", 64),
        ("once job --key a", "once job/a", 64),
        ("run job", "once job", 64),
        ("once job", "once job --key a", 0),
        ("once job --key b", "once job --key c", 0),
        ("once job", "run job --no-wait", 75),
    ] {
        // A good end would be recorded.
        let script = format!("{binary} {inner} -- true; echo $?; exit 1");
        let words = outer.split(' ').chain(["--", "sh", "-c", &script]);
        let ran = output(&mut stage.leasehold(words));
        let inner_code = String::from_utf8(ran.stdout.clone()).unwrap();
        let told = said(&ran);
        assert_eq!(
            inner_code.trim(),
            expected.to_string(),
            "{outer}, {inner}: {told}"
        );
        if expected == 64 {
            assert!(
                told.contains("process ") && told.contains("(\"sh\", token "),
                "{told}"
            );
            assert!(told.contains("wait for itself"), "{told}");
        }
    }
    // Work that is done waits for nobody, also not below a lock of its name.
    let log = Log::new();
    assert_eq!(
        code(&mut once(stage, &["job"], &log.program("true"))),
        Some(0)
    );
    let inner = format!("{binary} once job -- true");
    assert_eq!(code(&mut stage.sh(&inner)), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_is_tried_again_under_the_same_hold() {
    let stage = support::sqlite().await;
    let log = Log::new();
    let file = log.path("result").display().to_string();
    let script = "echo $LEASEHOLD_FENCING_TOKEN >> $D/result; [ $(wc -l < $D/runs) -gt 2 ]";
    let words = ["job", "--retries", "3", "--result", &file];
    let ran = output(&mut once(&stage, &words, &log.program(script)));
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    assert_eq!(log.runs().len(), 3);
    assert!(said(&ran).contains("retry 1 of 3") && said(&ran).contains("retry 2 of 3"));
    let result = stage.who("job")["done"]["result"]
        .as_str()
        .unwrap()
        .to_owned();
    let tokens: Vec<&str> = result.lines().collect();
    assert!(
        tokens.len() == 3 && tokens.iter().all(|it| *it == tokens[0]),
        "{tokens:?}"
    );

    let ran = code(&mut once(
        &stage,
        &["b", "--retries", "1"],
        &log.program("exit 4"),
    ));
    assert_eq!(ran, Some(4));
    assert_eq!(log.runs().len(), 5);
    // A time limit is for all runs together.
    let words = ["c", "--retries", "9", "--max-hold", "500ms"];
    let ran = code(&mut once(&stage, &words, &log.program("exit 4")));
    assert_eq!((ran, log.runs().len()), (Some(4), 6));
    // No run begins beside what the last one left behind.
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $! > $D/left; \
                  while [ $(ps -o sid= -p $!) = $(ps -o sid= -p $$) ]; do sleep 0.01; done; exit 4";
    let ran = code(&mut once(
        &stage,
        &["d", "--retries", "9"],
        &log.program(script),
    ));
    let left = fs::read_to_string(log.path("left")).unwrap();
    support::send(left.trim().parse().unwrap(), Signal::KILL);
    assert_eq!((ran, log.runs().len()), (Some(4), 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn results() {
    let stage = support::sqlite().await;
    let log = Log::new();
    let file = log.path("result").display().to_string();
    for (name, script, expected, told) in [
        ("none", "true", None, "recorded without a result"),
        ("pipe", "mkfifo $D/result", None, "it is no file"),
        ("empty", ": > $D/result", Some(String::new()), ""),
        (
            "full",
            "head -c 4096 /dev/zero | tr '\\0' x > $D/result; echo >> $D/result",
            Some("x".repeat(4096)),
            "",
        ),
        (
            "long",
            "head -c 9000 /dev/zero | tr '\\0' x > $D/result",
            Some("x".repeat(4096)),
            "cut to 4096",
        ),
        (
            "bytes",
            "printf 'a\\377\\000b' > $D/result",
            Some("a\u{fffd}\u{fffd}b".into()),
            "",
        ),
        ("failed", "echo no > $D/result; exit 9", None, ""),
    ] {
        drop(fs::remove_file(&file));
        let ran = output(&mut once(
            &stage,
            &[name, "--result", &file],
            &log.program(script),
        ));
        let done = &stage.who(name)["done"];
        assert_eq!(
            done["result"].as_str(),
            expected.as_deref(),
            "{name}: {done}"
        );
        assert_eq!(done.is_null(), name == "failed", "{name}: {done}");
        assert_eq!(done["cut"] == true, name == "long", "{name}");
        assert!(said(&ran).contains(told), "{name}: {}", said(&ran));
        assert_eq!(
            said(&ran).is_empty(),
            told.is_empty(),
            "{name}: {}",
            said(&ran)
        );
    }
    // A long one is shown whole to who asks for it.
    let shown = |words: [&str; 2]| text(&mut stage.leasehold(words)).contains(&"x".repeat(4096));
    assert!(shown(["who", "full"]) && !shown(["ls", "full"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_before_anything_runs() {
    let stage = support::sqlite().await;
    let log = Log::new();
    let long = "x".repeat(509);
    let folder = log.folder.path().display().to_string();
    for (words, told) in [
        (&["job", "--every", "1h", "--key", "k"][..], "--key"),
        (&["job", "--every", "1999ms"], "2s"),
        (&["job", "--every", "0"], "2s"),
        (&["job", "--every", "51years"], "days"),
        (&["job", "--offset", "1h"], "--every"),
        (
            &["job", "--every", "1h", "--offset", "1h"],
            "not shorter than --every 1h",
        ),
        (
            &["job", "--every", "1h", "--keep", "119m"],
            "two periods of --every, 2h",
        ),
        (&["job", "--keep", "0"], "never count"),
        (&["job", "--keep", "0s"], "never count"),
        (&["job", "--keep", "1s"], "shorter than --ttl"),
        (&["job", "--keep", "101years"], "36500 days"),
        (&["job", "--keep", "always"], "forever"),
        (&["job", "--key", ""], "--key is empty"),
        (&[&long, "--key", "123"], "512 bytes"),
        (&["", "--wait"], "name"),
        (&["job", "--result", "-"], "secrets"),
        (&["job", "--result", &folder], "no file"),
        (&["job", "--report", "-"], "/dev/stderr"),
        (&["job", "--retries", "-1"], "'-1'"),
        (&["job", "--done-code", "256"], "256"),
        (&["job", "--wait", "soon"], "500ms"),
        (&["job", "--fast"], "--fast"),
        (&["job", "--max-hold", "0"], "at once"),
    ] {
        let ran = output(&mut once(&stage, words, &log.program("true")));
        let said = said(&ran);
        assert_eq!(ran.status.code(), Some(64), "{words:?}: {said}");
        assert!(said.contains(told), "{words:?}: {said}");
    }
    assert_eq!(log.runs(), Vec::<String>::new());
    assert_eq!(text(&mut stage.leasehold(["ls", "--json"])).trim(), "[]");
    // These are right.
    for words in [
        &["a", "--every", "2s"][..],
        &["b", "--every", "1h", "--keep", "forever"],
        &["c", "--key", "k", "--keep", "3s", "-w"],
        &[&long, "--key", "12"],
    ] {
        let ran = output(&mut once(&stage, words, &log.program("true")));
        assert_eq!(ran.status.code(), Some(0), "{words:?}: {}", said(&ran));
    }
    assert_eq!(stage.who("b")["done"]["left_ms"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_records_is_refused() {
    let servers = Redis::start_many(3).await.unwrap();
    let stage = support::on_masters(&servers);
    let log = Log::new();
    let ran = output(&mut once(&stage, &["job"], &log.program("true")));
    assert_eq!(ran.status.code(), Some(64), "{}", said(&ran));
    assert!(said(&ran).contains("no record of work"), "{}", said(&ran));
    assert_eq!(log.runs().len(), 0);
    assert_eq!(stage.queue("job"), (0, 0));
    assert_eq!(text(&mut stage.leasehold(["ls", "--json"])).trim(), "[]");
    assert_eq!(code(&mut stage.leasehold(["forget", "job", "1"])), Some(64));
    let given = text(&mut stage.leasehold(["guarantees"]));
    assert!(given.contains("`once` is refused"), "{given}");
}

/// Clocks that differ: near half a period, and a record of the future.
#[tokio::test(flavor = "multi_thread")]
async fn what_clocks_may_do_is_said() {
    let stage = support::sqlite().await;
    let log = Log::new();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let hour = 3600;
    let run = |name: &str, period: u64, offset: u64| {
        let [period, offset] = [period, offset % period].map(|secs| format!("{secs}s"));
        let words = [name, "--every", &period, "--offset", &offset];
        let ran = output(&mut once(&stage, &words, &log.program("true")));
        assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
        said(&ran)
    };
    assert_eq!(run("a", hour, now % hour), "");
    // Half a period away: another fire for a clock that differs by a second.
    let told = run("b", hour, now % hour + hour / 2);
    assert!(
        told.contains("boundary") && told.contains("--offset"),
        "{told}"
    );
    // The fire of a shorter period is a later one.
    let short = hour - 60;
    assert_eq!(run("c", short, now % short), "");
    let ran = log.runs().len();
    let told = run("c", hour, now % hour);
    assert!(
        told.contains("fires ahead") && told.contains("leasehold forget \"c\""),
        "{told}"
    );
    assert_eq!(log.runs().len(), ran);
    let told = run("c", short, now % short);
    assert!(
        told.contains("is done") && !told.contains("ahead"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reports() {
    let stage = support::sqlite().await;
    let log = Log::new();
    let file = log.path("report");
    let path = file.display().to_string();
    let report = |name: &str, script: &str| -> Value {
        let words = [name, "--report", &path];
        output(&mut once(&stage, &words, &log.program(script)));
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap()
    };
    let failed = report("job", "exit 5");
    assert_eq!(
        (&failed["outcome"], &failed["code"]),
        (&"ended".into(), &5.into())
    );
    let ran = report("job", "true");
    assert_eq!(
        (&ran["outcome"], &ran["code"]),
        (&"ended".into(), &0.into())
    );
    let done = report("job", "true");
    assert_eq!(
        (&done["outcome"], &done["code"]),
        (&"done".into(), &Value::Null)
    );
    assert_eq!(
        (&done["token"], &done["name"]),
        (&ran["token"], &"job".into())
    );
    let words = [
        "once",
        "job",
        "--key",
        "k",
        "--report",
        &path,
        "--",
        "no-such-program",
    ];
    assert_eq!(code(&mut stage.leasehold(words)), Some(127));
    let missing: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        (&missing["outcome"], &missing["name"]),
        (&"failed".into(), &"job/k".into())
    );
}

/// A program that waits for `$D/go`, on a store that the test then disturbs.
fn until_go(stage: &Stage, log: &Log) -> Running {
    let script = "while [ ! -e $D/go ]; do sleep 0.01; done";
    let file = log.path("report").display().to_string();
    let words = ["job", "--report", &file];
    let running = Running::start(&mut once(stage, &words, &log.program(script)));
    until("the program", || (log.runs().len() == 1).then_some(()));
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_end_that_cannot_be_recorded() {
    let redis = Redis::start().await.unwrap();
    let stage = support::on_url(redis.url());
    let log = Log::new();
    let mut run = until_go(&stage, &log);
    redis.kill().await.unwrap();
    fs::write(log.path("go"), "").unwrap();
    assert_eq!(run.end().code(), Some(69));
    let told = fs::read_to_string(log.path("report")).unwrap();
    assert!(
        told.contains("\"not_recorded\"") && told.contains("\"code\":0"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_end_of_which_it_is_not_known_whether_it_is_recorded() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(redis.addr()).await.unwrap();
    let stage = support::on_url(format!("redis://{}", proxy.addr()));
    let log = Log::new();
    let direct = support::on_url(redis.url());
    // The server knows the script from then on.
    assert_eq!(
        code(&mut once(
            &direct,
            &["other"],
            &["--", "true"].map(String::from)
        )),
        Some(0)
    );
    let mut run = until_go(&stage, &log);
    proxy.drop_replies();
    fs::write(log.path("go"), "").unwrap();
    assert_eq!(run.end().code(), Some(70));
    let told = fs::read_to_string(log.path("report")).unwrap();
    assert!(
        told.contains("\"unknown\"") && told.contains("\"code\":0"),
        "{told}"
    );
    // It is, and the next one is told so.
    assert_eq!(
        code(&mut once(&direct, &["job"], &log.program("true"))),
        Some(0)
    );
    assert_eq!(log.runs().len(), 1);
}

/// A signal does not wait for a store that is silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_end_is_being_recorded() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(redis.addr()).await.unwrap();
    let mut stage = support::on_url(format!("redis://{}", proxy.addr()));
    stage.ttl = Duration::from_secs(3600);
    let log = Log::new();
    let mut run = until_go(&stage, &log);
    let asked = proxy.hold_matching("job");
    fs::write(log.path("go"), "").unwrap();
    asked.sprung().await;
    proxy.hold();
    run.signal(Signal::TERM);
    assert_eq!(run.end().code(), Some(70));
}

#[test]
fn a_store_that_is_away_is_tried_once() {
    let words = [
        "once",
        "job",
        "--store",
        "redis://127.0.0.1:1",
        "--",
        "true",
    ];
    assert_eq!(code(&mut leasehold(words)), Some(69));
}

//! Private PostgreSQL servers, their standbys, and PgBouncer: start, stop, kill, pause, promote.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use leasehold_testbed::{
    Certificates, Error, ON_DISK, PgBouncer, Postgres, PostgresOptions, TlsPort,
};
use tokio::{net::TcpStream, time::timeout};

const NEVER: Duration = Duration::from_millis(150);

async fn table(postgres: &Postgres) {
    postgres
        .query("CREATE TABLE a (n int); INSERT INTO a VALUES (1), (2)")
        .await
        .unwrap();
}

async fn rows(postgres: &Postgres) -> u64 {
    postgres.number("SELECT count(*) FROM a").await.unwrap()
}

/// The segments of shared memory of System V that the system has.
fn segments() -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned))
        .collect()
}

/// The one that a server has.
fn segment(postgres: &Postgres) -> String {
    let file = fs::read_to_string(postgres.data().join("postmaster.pid")).unwrap();
    file.lines()
        .nth(6)
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn answers_with_rows_and_refusals() {
    let postgres = Postgres::start().await.unwrap();
    table(&postgres).await;
    assert_eq!(rows(&postgres).await, 2);
    let answer = postgres
        .query("SELECT n, NULL FROM a ORDER BY n")
        .await
        .unwrap();
    assert_eq!(answer, [[Some("1".into()), None], [Some("2".into()), None]]);
    let refused = postgres.query("SELECT nonsense").await.unwrap_err();
    assert!(
        matches!(&refused, Error::Answer { answer, .. } if answer.starts_with("42703")),
        "{refused}"
    );
    assert_eq!(postgres.text("SHOW fsync").await.unwrap(), "on");
    // The server may notice a little later that the connections of the former questions are closed.
    let alone = async { while postgres.clients().await.unwrap() != 0 {} };
    timeout(Duration::from_secs(60), alone).await.unwrap();
    let before = postgres.wal().await.unwrap();
    postgres.query("INSERT INTO a VALUES (3)").await.unwrap();
    assert!(postgres.wal().await.unwrap() > before);
    let plain = "SELECT rolsuper::int FROM pg_roles WHERE rolname = 'app'";
    assert_eq!(postgres.number(plain).await.unwrap(), 0);
}

#[tokio::test]
async fn keeps_its_data_when_killed_and_loses_them_when_told_to() {
    let postgres = Postgres::start().await.unwrap();
    let addr = postgres.addr().to_owned();
    table(&postgres).await;
    postgres.restart_with_data().await.unwrap();
    assert_eq!(rows(&postgres).await, 2);
    postgres.stop().await.unwrap();
    assert!(!postgres.is_running());
    postgres.start_again().await.unwrap();
    assert_eq!((rows(&postgres).await, postgres.addr()), (2, &*addr));
    postgres.restart_without_data().await.unwrap();
    assert!(postgres.query("SELECT count(*) FROM a").await.is_err());
    table(&postgres).await;
}

/// Their data are copies of one cluster, and each has an identifier of its own.
#[tokio::test]
async fn each_server_is_a_cluster_of_its_own() {
    let [one, two] = [
        Postgres::start().await.unwrap(),
        Postgres::start().await.unwrap(),
    ];
    let identifier = async |of: &Postgres| {
        let asked = of.number("SELECT system_identifier FROM pg_control_system()");
        asked.await.unwrap()
    };
    let of_one = identifier(&one).await;
    assert_ne!(of_one, identifier(&two).await);
    one.restart_without_data().await.unwrap();
    assert_eq!(identifier(&one).await, of_one);
}

/// Those that clients talk to as well.
#[tokio::test]
async fn all_its_processes_stop_and_die_with_it() {
    let postgres = Postgres::start().await.unwrap();
    let sleeper = async { postgres.query("SELECT 'me', pg_sleep(600)").await };
    let judge = async {
        let found = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%''me''%' AND pid <> pg_backend_pid()";
        let pid = loop {
            if let Ok(pid) = postgres.text(found).await {
                break pid;
            }
        };
        postgres.pause().await.unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        assert!(stat.contains(") T "), "{stat}");
        assert!(timeout(NEVER, postgres.query("SELECT 1")).await.is_err());
        postgres.resume().unwrap();
        postgres.query("SELECT 1").await.unwrap();
        postgres.pause().await.unwrap();
        postgres.kill().await.unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    };
    let (slept, ()) = tokio::join!(sleeper, judge);
    assert!(slept.is_err());
    // Nobody has the data any more, so it starts at once.
    postgres.start_again().await.unwrap();
}

#[tokio::test]
async fn nothing_of_it_is_left() {
    let postgres = Postgres::start().await.unwrap();
    let (first, data) = (segment(&postgres), postgres.data().to_owned());
    assert!(segments().contains(&first));
    postgres.restart_without_data().await.unwrap();
    let second = segment(&postgres);
    postgres.pause().await.unwrap();
    drop(postgres);
    let left = segments();
    assert!(
        !data.exists() && !left.contains(&first) && !left.contains(&second),
        "{first} {second} {left:?}"
    );
}

/// Tells what it has started and waits to be killed.
#[tokio::test]
#[ignore = "a_server_ends_when_its_test_is_killed runs this"]
async fn start_and_wait_to_be_killed() {
    let postgres = Postgres::start().await.unwrap();
    println!(
        "\nserver {} {}",
        postgres.pid().unwrap(),
        segment(&postgres)
    );
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_ends_when_its_test_is_killed() {
    // No process is left to remove the server's folder, which is the server's user's.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut test = Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "postgres::start_and_wait_to_be_killed",
        ])
        .env("TMPDIR", folder.path())
        .env(ON_DISK, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(test.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let facts = lines
        .find_map(|line| Some(line.strip_prefix("server ")?.to_owned()))
        .unwrap();
    let (pid, left) = facts.split_once(' ').unwrap();
    test.kill().unwrap();
    test.wait().unwrap();
    let ended = async {
        // The next start of any server removes the segment, once no process has it any more.
        while segments().iter().any(|segment| segment == left) {
            Postgres::start().await.unwrap();
        }
    };
    timeout(Duration::from_secs(60), ended).await.unwrap();
    assert!(
        !fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("postgres"))
    );
}

#[tokio::test]
async fn a_standby_follows_and_is_promoted() {
    let primary = Postgres::start().await.unwrap();
    let standby = primary.standby("one").await.unwrap();
    primary
        .set("synchronous_standby_names", "one")
        .await
        .unwrap();
    let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'one' AND sync_state = 'sync'";
    while primary.number(synchronous).await.unwrap() == 0 {}
    table(&primary).await;
    assert!(primary.is_leader().await.unwrap() && !standby.is_leader().await.unwrap());
    // What it has been sent it may not have applied yet: there is no such table until then.
    let refused = async {
        while !standby
            .query("DELETE FROM a")
            .await
            .unwrap_err()
            .to_string()
            .contains("25006")
        {}
    };
    timeout(Duration::from_secs(60), refused).await.unwrap();
    primary.kill().await.unwrap();
    standby.promote().await.unwrap();
    assert_eq!(rows(&standby).await, 2);
    standby.query("DELETE FROM a").await.unwrap();
    assert!(standby.is_leader().await.unwrap());
}

#[tokio::test]
async fn takes_settings_and_reports_bad_ones() {
    let off = PostgresOptions::default().set("synchronous_commit", "off");
    let postgres = Postgres::start_with(&off).await.unwrap();
    assert_eq!(
        postgres.text("SHOW synchronous_commit").await.unwrap(),
        "off"
    );
    let refused = Postgres::start_with(&off.set("no_such_setting", "1"))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("no_such_setting"), "{refused}");
}

#[tokio::test]
async fn the_clock_of_all_its_processes_is_stepped() {
    let postgres = Postgres::start_with(&PostgresOptions {
        clock: true,
        ..PostgresOptions::default()
    })
    .await
    .unwrap();
    let clock = async || {
        postgres
            .number("SELECT extract(epoch FROM clock_timestamp())::bigint")
            .await
            .unwrap()
    };
    let before = clock().await;
    postgres.step_clock(300_000_000).unwrap();
    let ahead = clock().await;
    assert!(
        (before + 300..before + 330).contains(&ahead),
        "{before} {ahead}"
    );
    postgres.step_clock(-600_000_000).unwrap();
    postgres.restart_with_data().await.unwrap();
    let behind = clock().await;
    assert!(
        (before - 300..before - 240).contains(&behind),
        "{before} {behind}"
    );
}

#[tokio::test]
async fn serves_tls_with_the_certificate_of_the_day() {
    let certificates = Certificates::new().unwrap();
    for mutual in [false, true] {
        let tls = TlsPort {
            mutual,
            ..TlsPort::new(&certificates).unwrap()
        };
        let postgres = Postgres::start_with(&PostgresOptions {
            tls: Some(tls.clone()),
            ..Default::default()
        })
        .await;
        let postgres = postgres.unwrap();
        assert_eq!(
            (postgres.addr(), postgres.text("SHOW ssl").await.unwrap()),
            (&*tls.addr(), "on".into())
        );
        certificates.issue("server").unwrap();
        postgres.restart_with_data().await.unwrap();
        assert_eq!(
            fs::read(postgres.data().join("server.pem")).unwrap(),
            fs::read(&tls.files.certificate).unwrap()
        );
    }
}

#[tokio::test]
async fn a_pooler_outlives_its_server() {
    let postgres = Postgres::start().await.unwrap();
    let pooler = PgBouncer::start(&postgres).await.unwrap();
    assert!(pooler.url().starts_with("postgres://app:s3cret@127.0.0.1:"));
    assert!(format!("{:?}", pooler.console("SHOW CONFIG").await.unwrap()).contains("transaction"));
    TcpStream::connect(pooler.addr()).await.unwrap();
    pooler.pause().await.unwrap();
    assert!(timeout(NEVER, pooler.console("SHOW POOLS")).await.is_err());
    pooler.resume().unwrap();
    postgres.kill().await.unwrap();
    pooler.restart_with_data().await.unwrap();
    pooler.console("SHOW POOLS").await.unwrap();
    let pid = pooler.pid().unwrap();
    drop(pooler);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

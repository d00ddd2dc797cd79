//! The server in memory answers as `redis-server` does: random programs of commands and scripts, of which both answer the same.

mod answer;
mod program;

use std::time::{Duration, SystemTime};

use answer::Answer;
use fastrand::Rng;
use leasehold_sim::MiniRedis;
use leasehold_testbed::Redis;
use program::command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many programs there are, and how many commands each has.
const PROGRAMS: (u64, usize) = (40, 150);
/// How far apart the ends of two leases may be said to be that began together on a busy machine, in milliseconds.
const APART: i64 = 60_000;

/// A connection to the real server.
struct Real(TcpStream);

impl Real {
    async fn ask(&mut self, request: &[u8]) -> Answer {
        self.0.write_all(request).await.unwrap();
        let mut said = Vec::new();
        loop {
            if let Some((answer, _)) = Answer::read(&said) {
                return answer;
            }
            assert!(
                self.0.read_buf(&mut said).await.unwrap() > 0,
                "the server has closed the connection"
            );
        }
    }
}

fn request(words: &[String]) -> Vec<u8> {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
}

fn wall() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64
}

/// Whether these are the same, as far as clocks allow: how long a key still lives is less by the time between the two answers.
fn are_alike(words: &[String], real: &Answer, ours: &Answer) -> bool {
    let lives = |real: i64, ours: i64| real > 0 && ours > 0 && (real - ours).abs() < APART;
    let asks = words.iter().any(|word| word.eq_ignore_ascii_case("pttl"));
    real == ours
        || asks
            && match (real, ours) {
                (Answer::Int(real), Answer::Int(ours)) => lives(*real, *ours),
                // A script has made a text of it, or a part of a list.
                (Answer::Text(_, real), Answer::Text(_, ours)) => {
                    matches!((real.parse(), ours.parse()), (Ok(real), Ok(ours)) if lives(real, ours))
                }
                (Answer::List(one, real), Answer::List(other, ours)) => {
                    one == other
                        && real.len() == ours.len()
                        && real
                            .iter()
                            .zip(ours)
                            .all(|(real, ours)| are_alike(words, real, ours))
                }
                _ => false,
            }
}

#[tokio::test]
async fn both_answer_the_same() {
    let server = Redis::start().await.unwrap();
    let mut real = Real(TcpStream::connect(server.addr()).await.unwrap());
    let (mut ours, mut many) = (MiniRedis::default(), 0);
    ours.opened(1);
    let mut both = async |words: &[String]| {
        let request = request(words);
        let theirs = real.ask(&request).await;
        let said = ours
            .received(1, &request, wall())
            .pop()
            .map(|(_, said)| said)
            .unwrap_or_default();
        (
            theirs,
            Answer::read(&said)
                .unwrap_or_else(|| panic!("{words:?}: {said:?}"))
                .0,
        )
    };
    for seed in 0..PROGRAMS.0 {
        let mut random = Rng::with_seed(seed);
        both(&["HELLO".into(), if random.bool() { "3" } else { "2" }.into()]).await;
        both(&["FLUSHALL".into()]).await;
        for _ in 0..PROGRAMS.1 {
            let words = command(&mut random);
            let (theirs, said) = both(&words).await;
            assert!(
                are_alike(&words, &theirs, &said),
                "seed {seed}: {words:?}\nreal: {theirs:?}\nours: {said:?}"
            );
            let expires =
                |word: &String| ["px", "pexpire"].contains(&word.to_ascii_lowercase().as_str());
            if words.iter().any(expires)
                && words
                    .last()
                    .is_some_and(|last| program::SOON.contains(&last.as_str()))
            {
                // What was set to end soon has ended on both.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            many += 1;
        }
    }
    println!("{many} commands were answered the same");
}

/// A server that has no room takes what needs none, and whatever a script writes after that.
#[tokio::test]
async fn both_are_full_in_the_same_way() {
    let server = Redis::start().await.unwrap();
    let mut real = Real(TcpStream::connect(server.addr()).await.unwrap());
    let mut ours = MiniRedis::default();
    ours.opened(1);
    let lines = [
        "SET a 1",
        "CONFIG SET maxmemory 1",
        "SET b 1",
        "INCR a",
        "DEL b",
        "PEXPIRE a 100000",
        "EVAL redis.call('SET',KEYS[1],'2')return'done' 1 a",
        "EVAL redis.call('PEXPIRE',KEYS[1],100000)redis.call('SET',KEYS[1],'3')return'done' 1 a",
        "GET a",
        "EVAL return{redis.pcall('SET','a',4).err~=nil,redis.call('DEL','a'),redis.call('SET','a',5)} 0",
        "CONFIG SET maxmemory 0",
        "SET b 1",
    ];
    for line in lines {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let request = request(&words);
        let said = ours.received(1, &request, wall()).pop().unwrap().1;
        assert_eq!(
            real.ask(&request).await,
            Answer::read(&said).unwrap().0,
            "{line}"
        );
    }
}

//! Turns of transactions on a connection, against an imitation that keeps what it was asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::backend::{Claim, Mode, Renewal, WaitPolicy};
use leasehold_core::{Error, ErrorKind, FencingToken};
use leasehold_testbed::RedisLike;
use leasehold_testbed::verbs::{TTL, bounded, lease, until};
use redis::{Client, Value};

use super::entry::Record;
use super::transaction::Turns;
use super::waiting::Waiters;
use super::{Plain, command};
use crate::client::nodes::Nodes;
use crate::link::{Connection, Inbox, Names, Server};

/// The words of each request so far, with `HELLO` at the beginning of each connection.
type Asked = Arc<Mutex<Vec<String>>>;

async fn imitation() -> (RedisLike, Asked) {
    imitation_with(String::new(), -2).await
}

/// Each key has this value, and so much of its lease left. No transaction is executed.
async fn imitation_with(value: String, left: i64) -> (RedisLike, Asked) {
    let asked = Asked::default();
    let keeps = asked.clone();
    let server = RedisLike::answering(move |words| {
        keeps.lock().unwrap().push(words.join(" "));
        Some(match words[0].as_str() {
            "UNWATCH" | "WATCH" | "SET" | "MULTI" => "+OK".to_owned(),
            "GET" | "PEXPIRE" => "+QUEUED".to_owned(),
            "MGET" => format!("*1\r\n${}\r\n{value}", value.len()),
            "EXEC" => "_".to_owned(),
            "DEL" => ":1".to_owned(),
            "PTTL" => format!(":{left}"),
            _ => return None,
        })
    });
    (server.await.unwrap(), asked)
}

async fn connection(server: &RedisLike) -> Connection {
    let client = Client::open(format!("redis://{}", server.addr())).unwrap();
    let info = client.get_connection_info().clone();
    let inbox = Inbox::new(false);
    let made = Connection::new(
        Server::from(info),
        Duration::from_secs(60),
        Duration::ZERO,
        &inbox,
    );
    let connection = made.unwrap();
    connection.connect().await.unwrap();
    connection
}

fn turns() -> Turns {
    Turns::new(Duration::from_secs(60), "{}:w".into())
}

/// The requests behind the last one of a connection's beginning.
fn since_connected(asked: &Asked) -> Vec<String> {
    let asked = asked.lock().unwrap();
    let begun = asked
        .iter()
        .rposition(|words| words.starts_with("SUBSCRIBE"));
    asked[begun.unwrap() + 1..].to_vec()
}

#[tokio::test]
async fn what_was_watched_over_one_connection_is_not_executed_over_the_next() {
    bounded(async {
        let (server, asked) = imitation().await;
        let connection = connection(&server).await;
        let turns = turns();
        let turn = turns.next(&connection).await.unwrap();
        let mut question = redis::pipe();
        question.cmd("PTTL").arg("x");
        turn.watch(&["x".into()], &question, None).await.unwrap();
        let first = connection.nth().unwrap();
        connection.refuse(first, &Error::new(ErrorKind::Unavailable, "a test"));
        until(async || connection.nth().is_ok_and(|nth| nth > first)).await;
        let refused = turn
            .execute(&[command("DEL", &["x"])], None)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        let sent = since_connected(&asked);
        assert!(
            !sent.iter().any(|words| words.starts_with("MULTI")),
            "{sent:?}"
        );
        // The next turn makes sure that transactions work there, before anything else.
        drop(turn);
        drop(turns.next(&connection).await.unwrap());
        let sent = since_connected(&asked);
        assert_eq!(sent[..2], ["UNWATCH", "WATCH {}:w"], "{sent:?}");
    })
    .await;
}

#[tokio::test]
async fn transactions_take_turns_and_one_that_is_dropped_leaves_nothing_watched() {
    bounded(async {
        let (server, asked) = imitation().await;
        let connection = connection(&server).await;
        let turns = turns();
        let turn = turns.next(&connection).await.unwrap();
        let question = redis::pipe();
        turn.watch(&["x".into()], &question, None).await.unwrap();
        let mut next = Box::pin(turns.next(&connection));
        for _ in 0..100 {
            assert!((&mut next).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        drop(turn);
        let turn = next.await.unwrap();
        turn.watch(&["y".into()], &question, None).await.unwrap();
        let sent = since_connected(&asked);
        assert_eq!(sent[sent.len() - 2..], ["UNWATCH", "WATCH y"], "{sent:?}");
    })
    .await;
}

/// What is read is read in steps, and only `EXEC` says that nothing has changed since the first.
#[tokio::test]
async fn a_renewal_believes_only_what_was_executed() {
    bounded(async {
        let token = FencingToken::new(7);
        let claim = Claim::new("x", Mode::Exclusive, WaitPolicy::Fair, TTL, "me");
        let record = Record {
            token,
            turns: 1,
            since: 1,
            attempt: 1,
            channel: "leasehold:x".into(),
            label: "me".into(),
            id: claim.id,
        };
        // The lease ended between the two questions; it is long enough, or is to be extended.
        for (left, is_lost) in [(-2, true), (600_000, false), (10, false)] {
            let (server, _) = imitation_with(record.text(), left).await;
            let plain = Plain {
                nodes: Arc::new(Nodes::One(connection(&server).await)),
                names: Names::new("", &["l"]).unwrap(),
                inbox: Inbox::new(false),
                turns: turns(),
                waiters: Waiters::default(),
            };
            let renewals = plain.renew(&[lease(&claim, token)]).await;
            match &renewals[..] {
                [Renewal::Lost(_)] if is_lost => {}
                [Renewal::Unknown(e)] if !is_lost => assert_eq!(e.kind(), ErrorKind::Unavailable),
                other => panic!("{left}: {other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_transaction_that_waits_too_long_sends_nothing() {
    bounded(async {
        let (server, asked) = imitation().await;
        let connection = connection(&server).await;
        let turns = Turns::new(Duration::from_millis(1), "{}:w".into());
        let _turn = turns.next(&connection).await.unwrap();
        let before = asked.lock().unwrap().len();
        let late = turns.next(&connection).await.map(drop).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Unavailable);
        assert_eq!(asked.lock().unwrap().len(), before);
    })
    .await;
}

/// What a command of a transaction is refused for as it is executed, undoes none of the others.
#[tokio::test]
async fn a_refusal_in_a_transaction_that_was_executed_leaves_it_in_doubt() {
    bounded(async {
        let is_tested = AtomicBool::new(false);
        let server = RedisLike::answering(move |words| {
            Some(match words[0].as_str() {
                "UNWATCH" | "WATCH" | "SET" | "MULTI" => "+OK".to_owned(),
                "GET" | "PEXPIRE" | "HDEL" => "+QUEUED".to_owned(),
                "EXEC" if !is_tested.swap(true, Ordering::SeqCst) => "_".to_owned(),
                "EXEC" => "*2\r\n:1\r\n-WRONGTYPE it".to_owned(),
                "DEL" => ":1".to_owned(),
                _ => return None,
            })
        });
        let server = server.await.unwrap();
        let connection = connection(&server).await;
        let turns = turns();
        let turn = turns.next(&connection).await.unwrap();
        let [extend, tidy] = [
            command("PEXPIRE", &["x", "1"]),
            command("HDEL", &["{x}:p", "a"]),
        ];
        let both = [extend.clone(), tidy.clone()];
        let e = turn.execute(&both, None).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Ambiguous, "{e}");
        // What is beside the point is no doubt.
        let done = turn.execute(&[extend], Some(tidy)).await.unwrap();
        assert_eq!(done, Some(vec![Value::Int(1)]));
    })
    .await;
}

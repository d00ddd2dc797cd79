//! A call that another thread takes back, on a server.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_testbed::Redis;
use leasehold_testbed::verbs::bounded;
use redis::{Client, Value, pipe};

use crate::link::connection::Connection;
use crate::link::inbox::Inbox;
use crate::link::script::{Call, GivenUp, Script, run_all};
use crate::link::server::Server;

/// As long as those of a store: to send it takes a moment.
static APPENDS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[
        "return redis.call('RPUSH', KEYS[1], ARGV[1]) -- ",
        &"and so on ".repeat(1500),
    ])
});

const ROUNDS: usize = 2000;

/// A call is taken back by another thread, whenever that is: while its first answer is on its way, or while it is sent once more, alone or
/// in a flight. What takes it back is the last that the server gets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_a_call_back_comes_behind_it() {
    bounded(async {
        let node = Redis::start().await.unwrap();
        let info = Client::open(node.url())
            .unwrap()
            .get_connection_info()
            .clone();
        let made = Connection::new(
            Server::from(info),
            Duration::from_secs(20),
            Duration::ZERO,
            &Inbox::new(false),
        );
        let connection = Arc::new(made.unwrap());
        connection.connect().await.unwrap();
        let (takes_back, mut look) = (
            pipe().cmd("RPUSH").arg("x").arg("taken back").clone(),
            pipe(),
        );
        look.cmd("LRANGE")
            .arg("x")
            .arg(0)
            .arg(-1)
            .cmd("DEL")
            .arg("x")
            .cmd("SCRIPT")
            .arg("FLUSH");
        let mut moment = Duration::ZERO;
        for round in 0..ROUNDS {
            let given_up = GivenUp::default();
            let call = Call::of(&APPENDS, 1)
                .arg("x")
                .arg("call")
                .until(given_up.clone());
            let there = connection.clone();
            let start = Moment::now();
            let answered = tokio::spawn(async move {
                if round % 2 == 0 {
                    call.run(&there).await
                } else {
                    run_all(&there, &[call]).await.remove(0)
                }
            });
            while Moment::now().since(start) < moment {
                std::hint::spin_loop();
            }
            given_up.set();
            connection.send(&takes_back).await.unwrap();
            let answer = answered.await.unwrap();
            let said = connection.send(&look).await.unwrap().remove(0);
            let said = said.as_sequence().unwrap();
            let last = said.last().unwrap();
            assert_eq!(
                *last,
                Value::BulkString(b"taken back".to_vec()),
                "{round}: {said:?}, {answer:?}"
            );
            // Near to the moment at which it is sent once more.
            let (step, is_late) = (Duration::from_micros(fastrand::u64(..20)), said.len() > 1);
            moment = if is_late {
                moment.saturating_sub(step)
            } else {
                moment + step
            };
        }
    })
    .await;
}

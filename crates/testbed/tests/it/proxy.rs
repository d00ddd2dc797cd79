//! The proxy's faults, against a small server that answers each line with the same line.

use std::{
    io::{Error, ErrorKind, Result},
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_testbed::Proxy;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{Instant, timeout},
};

const SOON: Duration = Duration::from_secs(10);
const NEVER: Duration = Duration::from_millis(150);

/// Answers each line with the same line, and remembers them. A connection's end is remembered as `end`.
struct Echo {
    addr: String,
    heard: Arc<Mutex<Vec<String>>>,
    news: watch::Sender<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (heard, news) = (Arc::new(Mutex::new(Vec::new())), watch::Sender::new(()));
        let echo = Self {
            addr,
            heard: Arc::clone(&heard),
            news: news.clone(),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heard, news) = (Arc::clone(&heard), news.clone());
                tokio::spawn(async move {
                    let mut client = Client(BufReader::new(stream));
                    loop {
                        let line = client.read().await;
                        heard
                            .lock()
                            .unwrap()
                            .push(line.as_deref().unwrap_or("end").to_owned());
                        news.send_replace(());
                        let Ok(line) = line else { return };
                        if client.send(&line).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        echo
    }

    async fn hears(&self, line: &str) {
        let mut news = self.news.subscribe();
        let heard = async {
            while !self.has_heard(line) {
                news.changed().await.unwrap();
            }
        };
        timeout(SOON, heard)
            .await
            .unwrap_or_else(|_| panic!("never heard {line:?}"));
    }

    fn has_heard(&self, line: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|heard| heard == line)
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(proxy: &Proxy) -> Result<Self> {
        TcpStream::connect(proxy.addr())
            .await
            .map(|stream| Self(BufReader::new(stream)))
    }

    async fn send(&mut self, line: &str) -> Result<()> {
        self.0
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .await
    }

    async fn read(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    async fn reply(&mut self) -> Result<String> {
        timeout(SOON, self.read())
            .await
            .map_err(|_| Error::from(ErrorKind::TimedOut))?
    }

    async fn ask(&mut self, line: &str) -> Result<String> {
        self.send(line).await?;
        self.reply().await
    }

    async fn stays_silent(&mut self) -> bool {
        timeout(NEVER, self.read()).await.is_err()
    }
}

async fn started() -> (Echo, Proxy, Client) {
    let echo = Echo::start().await;
    let proxy = Proxy::to(&*echo.addr).await.unwrap();
    let mut client = Client::connect(&proxy).await.unwrap();
    assert_eq!(client.ask("hello").await.unwrap(), "hello");
    (echo, proxy, client)
}

#[tokio::test]
async fn passes_and_counts() {
    let (_echo, proxy, mut client) = started().await;
    client.ask("again").await.unwrap();
    assert_eq!(
        (
            proxy.connections(),
            proxy.open_connections(),
            proxy.request_bytes()
        ),
        (1, 1, 12)
    );
    drop(client);
    timeout(SOON, proxy.until_open(0)).await.unwrap();
}

#[tokio::test]
async fn cut_closes_and_refuses_until_healed() {
    let (_echo, proxy, mut client) = started().await;
    proxy.cut().await;
    assert_eq!(proxy.open_connections(), 0);
    assert!(client.ask("lost").await.is_err());
    let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.heal().await;
    assert_eq!(
        Client::connect(&proxy)
            .await
            .unwrap()
            .ask("back")
            .await
            .unwrap(),
        "back"
    );
}

#[tokio::test]
async fn disconnect_closes_and_serves_on() {
    let (_echo, proxy, mut client) = started().await;
    proxy.disconnect().await;
    assert!(client.ask("lost").await.is_err());
    assert_eq!(
        Client::connect(&proxy)
            .await
            .unwrap()
            .ask("back")
            .await
            .unwrap(),
        "back"
    );
}

#[tokio::test]
async fn hold_is_a_black_hole_that_delivers_later() {
    let (echo, proxy, mut client) = started().await;
    proxy.hold();
    client.send("kept").await.unwrap();
    let mut fresh = Client::connect(&proxy).await.unwrap();
    fresh.send("kept too").await.unwrap();
    let mut impatient = Client::connect(&proxy).await.unwrap();
    impatient.send("given up").await.unwrap();
    drop(impatient);
    assert!(client.stays_silent().await && fresh.stays_silent().await);
    assert!(!echo.has_heard("kept"));
    proxy.heal().await;
    assert_eq!(client.reply().await.unwrap(), "kept");
    assert_eq!(fresh.reply().await.unwrap(), "kept too");
    assert!(!echo.has_heard("given up"));
}

#[tokio::test]
async fn a_close_is_held_as_well() {
    let (echo, proxy, mut client) = started().await;
    proxy.hold();
    client.send("last words").await.unwrap();
    drop(client);
    tokio::time::sleep(NEVER).await;
    assert!(!echo.has_heard("end"));
    proxy.heal().await;
    echo.hears("last words").await;
    echo.hears("end").await;
}

#[tokio::test]
async fn one_direction_can_be_held() {
    let (echo, proxy, mut client) = started().await;
    proxy.hold_replies();
    client.send("applied").await.unwrap();
    echo.hears("applied").await;
    assert!(client.stays_silent().await);
    proxy.heal().await;
    assert_eq!(client.reply().await.unwrap(), "applied");
}

#[tokio::test]
async fn a_connection_that_lost_bytes_is_closed_by_heal() {
    let (echo, proxy, mut client) = started().await;
    let mut idle = Client::connect(&proxy).await.unwrap();
    idle.ask("idle").await.unwrap();
    proxy.drop_replies();
    client.send("applied").await.unwrap();
    echo.hears("applied").await;
    assert!(client.stays_silent().await);
    proxy.heal().await;
    assert!(client.reply().await.is_err());
    assert_eq!(idle.ask("intact").await.unwrap(), "intact");
}

#[tokio::test]
async fn delay_is_latency_not_throughput() {
    let (_echo, proxy, mut client) = started().await;
    proxy.delay(Duration::from_millis(100));
    let begin = Instant::now();
    let lines: Vec<String> = (0..30).map(|nth| nth.to_string()).collect();
    for line in &lines {
        client.send(line).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for line in &lines {
        assert_eq!(client.reply().await.unwrap(), *line);
    }
    let took = begin.elapsed();
    // Half a second, on a machine that has time; one after the other three in each direction.
    assert!(
        took >= Duration::from_millis(200) && took < Duration::from_secs(3),
        "{took:?}"
    );
    proxy.delay_replies(Duration::from_secs(600));
    client.send("late").await.unwrap();
    assert!(client.stays_silent().await);
    proxy.heal().await;
    assert_eq!(client.reply().await.unwrap(), "late");
}

#[tokio::test]
async fn the_reply_to_a_request_is_lost() {
    let (echo, proxy, mut client) = started().await;
    let trap = proxy.lose_reply_matching("SET");
    assert_eq!(client.ask("GET a").await.unwrap(), "GET a");
    assert_eq!(
        client.ask("SET a").await.unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    timeout(SOON, trap.done()).await.unwrap();
    assert!(echo.has_heard("SET a"));
    assert_eq!(
        Client::connect(&proxy)
            .await
            .unwrap()
            .ask("SET b")
            .await
            .unwrap(),
        "SET b"
    );
}

#[tokio::test]
async fn the_replies_to_requests_come_late() {
    let (echo, proxy, mut client) = started().await;
    for line in ["SET a", "SET b"] {
        let trap = proxy.hold_reply_matching("SET");
        assert_eq!(client.ask("GET").await.unwrap(), "GET");
        client.send(line).await.unwrap();
        timeout(SOON, trap.sprung()).await.unwrap();
        echo.hears(line).await;
        assert!(client.stays_silent().await);
        proxy.deliver_held();
        assert_eq!(client.reply().await.unwrap(), line);
    }
    let never = proxy.hold_reply_matching("SET");
    proxy.disarm();
    assert_eq!(client.ask("SET c").await.unwrap(), "SET c");
    timeout(SOON, never.done()).await.unwrap();
}

#[tokio::test]
async fn a_request_is_delivered_after_its_client_is_gone() {
    let (echo, proxy, mut client) = started().await;
    let trap = proxy.hold_matching("claim");
    assert_eq!(client.ask("other").await.unwrap(), "other");
    client.send("claim 1").await.unwrap();
    timeout(SOON, trap.sprung()).await.unwrap();
    client.send("behind it").await.unwrap();
    drop(client);
    let mut second = Client::connect(&proxy).await.unwrap();
    assert_eq!(second.ask("withdraw 1").await.unwrap(), "withdraw 1");
    assert!(!echo.has_heard("claim 1"));
    proxy.deliver_held();
    timeout(SOON, trap.done()).await.unwrap();
    echo.hears("claim 1").await;
    echo.hears("behind it").await;
    echo.hears("end").await;
    assert_eq!(second.ask("claim 2").await.unwrap(), "claim 2");
}

#[tokio::test]
async fn a_server_that_is_not_there_closes_the_connection() {
    let echo = Echo::start().await;
    let proxy = Proxy::to("127.0.0.1:1").await.unwrap();
    assert!(
        Client::connect(&proxy)
            .await
            .unwrap()
            .ask("hello")
            .await
            .is_err()
    );
    drop(echo);
}

#[tokio::test]
async fn dropping_the_proxy_closes_everything() {
    let (_echo, proxy, mut client) = started().await;
    let addr = proxy.addr().to_owned();
    drop(proxy);
    assert!(client.reply().await.is_err());
    let refused = async {
        while TcpStream::connect(&addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, refused).await.unwrap();
}

#[test]
fn a_proxy_outlives_the_runtime_that_made_it() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let serving = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let echo = serving.block_on(Echo::start());
    let proxy = runtime().block_on(Proxy::to(&*echo.addr)).unwrap();
    let reply = runtime().block_on(async {
        Client::connect(&proxy)
            .await
            .unwrap()
            .ask("still here")
            .await
    });
    assert_eq!(reply.unwrap(), "still here");
}

#[tokio::test]
async fn freeze_is_a_black_hole_for_the_connections_that_there_are() {
    let (echo, proxy, mut client) = started().await;
    proxy.freeze();
    client.send("kept").await.unwrap();
    let mut fresh = Client::connect(&proxy).await.unwrap();
    assert_eq!(fresh.ask("new").await.unwrap(), "new");
    assert!(client.stays_silent().await && !echo.has_heard("kept"));
    proxy.heal().await;
    assert_eq!(client.reply().await.unwrap(), "kept");
}

/// Each client keeps what it has until it is closed. One that was taken while all were being cut had missed that: it was never cut, and
/// whoever had ordered it waited for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_comes_as_all_are_cut_is_cut_too() {
    let echo = Echo::start().await;
    let proxy = Proxy::to(&echo.addr).await.unwrap();
    for _ in 0..4 {
        let addr = proxy.addr().to_owned();
        tokio::spawn(async move {
            loop {
                if let Ok(stream) = TcpStream::connect(&addr).await {
                    let _ = Client(BufReader::new(stream)).read().await;
                }
                tokio::task::yield_now().await;
            }
        });
    }
    for nth in 0..1000 {
        assert!(
            timeout(SOON, proxy.disconnect()).await.is_ok(),
            "the {nth}th time"
        );
    }
}

//! The server in memory answers as ZooKeeper does: random programs of requests by two sessions, of which both answer the same, and tell
//! the same to those who watch.

mod program;

use fastrand::Rng;
use leasehold_sim::zookeeper::MiniZooKeeper;
use leasehold_sim_zookeeper_client::wire::{
    EVENT, PASSWORD, PING, Reader, Record, next_packet, op,
};
use leasehold_testbed::ZooKeeper;
use program::{Request, plain, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many programs there are, and how many requests each has.
const PROGRAMS: (u64, usize) = (40, 120);

/// Who is asked: a real server, or ours, over connections of which each has a number.
struct Server {
    real: Option<(String, Vec<TcpStream>)>,
    ours: MiniZooKeeper,
    input: Vec<Vec<u8>>,
    /// The transaction in which a program began.
    base: i64,
}

impl Server {
    async fn new(real: Option<String>) -> Server {
        let ours = MiniZooKeeper::new(1, 1, 200_000_000);
        let real = real.map(|addr| (addr, Vec::new()));
        Server {
            real,
            ours,
            input: Vec::new(),
            base: 0,
        }
    }

    /// Connects, and begins a session.
    async fn begin(&mut self) -> usize {
        let nth = self.input.len();
        self.input.push(Vec::new());
        match &mut self.real {
            Some((addr, all)) => all.push(TcpStream::connect(&*addr).await.unwrap()),
            None => self.ours.opened(nth as u64, 0),
        }
        let record = Record::default()
            .int(0)
            .long(0)
            .int(30_000)
            .long(0)
            .bytes(&[0; PASSWORD])
            .bool(false);
        self.send(nth, record).await;
        let packet = self.next(nth).await.unwrap();
        assert_eq!(Reader(&packet).int(), Some(0));
        nth
    }

    async fn send(&mut self, nth: usize, record: Record) {
        let packet = record.packet();
        match &mut self.real {
            Some((_, all)) => all[nth].write_all(&packet).await.unwrap(),
            None => self.ours.received(nth as u64, &packet, 1_000_000_000),
        }
    }

    /// The next packet; `None`: the connection is closed.
    async fn next(&mut self, nth: usize) -> Option<Vec<u8>> {
        loop {
            if let Some(packet) = next_packet(&mut self.input[nth]) {
                return Some(packet);
            }
            match &mut self.real {
                Some((_, all)) => {
                    if all[nth].read_buf(&mut self.input[nth]).await.unwrap_or(0) == 0 {
                        return None;
                    }
                }
                None => {
                    let (mut heard, said) = (false, self.ours.said());
                    for (to, _, piece) in said {
                        heard |= to == nth as u64 && piece.is_some();
                        self.input[to as usize].extend(piece.unwrap_or_default());
                    }
                    if !heard {
                        return None;
                    }
                }
            }
        }
    }

    /// What is answered, and which events came before: those of all connections.
    async fn ask(
        &mut self,
        nth: usize,
        all: &[usize],
        xid: i32,
        request: &Request,
    ) -> (String, Vec<String>) {
        let mut record = Record::default().int(xid).int(request.op);
        record.0.extend(&request.record.0);
        self.send(nth, record).await;
        let (mut answer, mut events) = (String::new(), Vec::new());
        self.until(nth, xid, &mut events, |packet, base| {
            answer = plain(request.op, packet, base);
        })
        .await;
        for other in all
            .iter()
            .filter(|other| request.op != op::CLOSE_SESSION || **other != nth)
        {
            self.send(*other, Record::default().int(PING).int(op::PING))
                .await;
            self.until(*other, PING, &mut events, |_, _| {}).await;
        }
        // Those of one transaction come in no order.
        events.sort();
        (answer, events)
    }

    async fn until(
        &mut self,
        nth: usize,
        xid: i32,
        events: &mut Vec<String>,
        mut answered: impl FnMut(&[u8], i64),
    ) {
        loop {
            let packet = self
                .next(nth)
                .await
                .unwrap_or_else(|| panic!("{nth} is closed, and {xid} is not answered"));
            let (mut reader, base) = (Reader(&packet), self.base);
            match reader.int().unwrap() {
                EVENT => {
                    let _ = (reader.long(), reader.int());
                    events.push(format!(
                        "{nth}: {:?}",
                        (reader.int(), reader.int(), reader.text())
                    ));
                }
                it => {
                    assert_eq!(it, xid);
                    return answered(&packet, base);
                }
            }
        }
    }

    /// Makes the node of a program, which its transactions are counted from.
    async fn root(&mut self, nth: usize, path: &str) {
        let record = Record::default()
            .int(1)
            .int(op::CREATE)
            .text(path)
            .bytes(b"")
            .int(1)
            .int(31);
        self.send(nth, record.text("world").text("anyone").int(0))
            .await;
        let packet = self.next(nth).await.unwrap();
        let mut reader = Reader(&packet);
        assert_eq!(reader.int(), Some(1));
        self.base = reader.long().unwrap();
        assert_eq!(reader.int(), Some(0), "the node of the program");
    }
}

#[tokio::test]
async fn both_answer_the_same() {
    let real = ZooKeeper::start().await.unwrap();
    let mut both = [
        Server::new(Some(real.addr().to_owned())).await,
        Server::new(None).await,
    ];
    let programs = std::env::var("LEASEHOLD_SEEDS")
        .ok()
        .and_then(|it| it.parse().ok())
        .unwrap_or(PROGRAMS.0);
    let mut many = 0;
    for seed in 0..programs {
        let (mut random, root) = (Rng::with_seed(seed), format!("/p{seed:06}"));
        let mut all = [0; 2];
        for connection in &mut all {
            for server in &mut both {
                *connection = server.begin().await;
            }
        }
        for server in &mut both {
            server.root(all[0], &root).await;
        }
        for step in 0..PROGRAMS.1 {
            let (which, request) = (random.usize(0..2), request(&mut random, &root));
            let mut seen = Vec::new();
            for server in &mut both {
                seen.push(
                    server
                        .ask(all[which], &all, step as i32 + 2, &request)
                        .await,
                );
            }
            assert_eq!(
                seen[0], seen[1],
                "seed {seed}, step {step}: {request:?}; the real one, and ours"
            );
            many += 1;
            if request.op == op::CLOSE_SESSION {
                for server in &mut both {
                    all[which] = server.begin().await;
                }
            }
        }
        for server in &mut both {
            for nth in all {
                server
                    .send(nth, Record::default().int(9999).int(op::CLOSE_SESSION))
                    .await;
                server.until(nth, 9999, &mut Vec::new(), |_, _| {}).await;
            }
        }
    }
    println!("{many} requests were answered the same");
}

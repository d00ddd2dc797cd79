//! One connection to a server that accepts writes.

use std::io::{self, ErrorKind::ConnectionRefused, ErrorKind::NotFound};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, TryFutureExt, join3, ready};
use futures_util::stream::{FuturesUnordered, Stream, StreamExt, poll_fn as stream_fn};
use leasehold_core::ErrorKind::{Ambiguous, OtherStore, Unavailable};
use leasehold_core::backend::Moment;
use leasehold_core::{Error, Result};
use leasehold_net::{Host, Tls, race};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config as Settings, NoTls, Notification};

use crate::client::answer::Row;
use crate::client::identity::{DatabaseIdentity, ROLE, Who};
use crate::client::lent::Lent;
use crate::client::request::Request;
use crate::client::session::{IN_TRANSACTION, STATE, Session, Sessions};
use crate::config::Server;
use crate::error::{Failure, is_of_encryption, is_of_tls, junk};
use crate::pool::{ConnectionPool, PoolError, simple_query};

/// After this time without a connection to a host, the next host is tried beside it.
const STEP: Duration = Duration::from_millis(300);
/// The number of parts in which that time passes where hosts are compared.
const TICKS: u32 = 10;
/// The longest pause before a host that did not answer is asked again.
const PAUSE: Duration = Duration::from_secs(30);

/// The number of borrowed connections that are looked at for one that is fit for requests.
const ATTEMPTS: usize = 3;
/// Why no connection to a standby is used.
const STANDBY: &str = "it is a standby: locks are written";

/// The reason why a borrowed connection is not used.
enum Unfit {
    /// It is closed: its session is in a state in which no request would do what it says.
    Closed(&'static str),
    /// It goes back: others may have a use for its session.
    GoesBack(String),
    Failure(Failure),
}

type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// A connection. After a drop it ends as soon as the requests that were sent are answered, or goes
/// back to the pool that has lent it.
pub(crate) struct Link {
    carrier: Carrier,
    /// It was cut off. Its task hears of that later.
    is_cut: AtomicBool,
    /// The moment of its last use, in nanoseconds.
    used: AtomicU64,
    /// The number of the primary to which it leads; 0 if it is not known.
    era: AtomicU64,
    identity: Arc<DatabaseIdentity>,
}

/// What carries the requests of a connection.
enum Carrier {
    /// A connection of the store, and the task that drives it.
    Own(Client, AbortHandle),
    /// A connection of a pool of the program.
    Lent(Lent),
}

/// A connection, and the notifications that arrive on it.
pub(crate) type Opened = (Link, UnboundedReceiver<Notification>);

impl Link {
    /// Connects to the first host that accepts writes and is the known database. All hosts are
    /// compared with each other at the start, and after a connection broke. The limit applies to
    /// each step, and the connection lives in the caller's runtime. A failure is only returned, not
    /// reported otherwise.
    pub(crate) async fn open(server: &Server, limit: Duration) -> Result<Opened> {
        let unsettled = || match server.hosts.len() {
            0 | 1 => None,
            _ => server.identity.unsettled(),
        };
        if let Some(since) = unsettled() {
            return Box::pin(Link::open_latest(server, since, limit)).await;
        }
        let checked = async |host| {
            let (opened, who) = Link::introduced(server, host, limit).await?;
            let era = match server.hosts.len() {
                0 | 1 => server.identity.follow(&who).map(Some),
                _ => server.identity.check(&who),
            };
            match era.map_err(|e| at(host, e))? {
                Some(era) => opened.0.leads_to(era),
                None => server.identity.doubt(),
            }
            Ok(opened)
        };
        let each: Vec<_> = server
            .hosts
            .iter()
            .map(|host| checked(host).boxed())
            .collect();
        let opened = race(each, STEP, |_| false).await;
        let opened = opened.map_err(|e| e.unwrap_or_else(no_host))?;
        match unsettled() {
            // A connection broke meanwhile, or there is another primary.
            Some(since) => Box::pin(Link::open_latest(server, since, limit)).await,
            None => Ok(opened),
        }
    }

    /// Compares all hosts, and connects to the right one.
    async fn open_latest(server: &Server, since: u64, limit: Duration) -> Result<Opened> {
        let mut late = server.hosts.clone();
        let each = server.hosts.iter().map(async |host| {
            let introduced = Link::introduced(server, host, limit).await;
            (host, introduced.map(|(opened, who)| (host, opened, who)))
        });
        let mut each: FuturesUnordered<_> = each.collect();
        let mut all = Vec::new();
        // One that is silent is waited for only for a moment once another one has answered.
        let mut tick = limit * 4;
        let mut ticks = 1;
        while ticks > 0 {
            match timeout(tick, each.next()).await {
                Ok(None) => break,
                // While this process is stopped, time passes, and no answer is read.
                Err(_) => ticks -= 1,
                Ok(Some((host, answer))) => {
                    if answer.is_ok() && !server.identity.is_doubted() {
                        (tick, ticks) = (STEP / TICKS, TICKS);
                    }
                    late.retain(|it| it != host);
                    all.push(answer);
                }
            }
        }
        drop(each);
        let opened = latest(server, all, limit).await?;
        if server.identity.settle(since) {
            Link::compare_later(server, since, late, limit);
        }
        Ok(opened)
    }

    /// Compares these hosts when they answer, however late that is, unless all are compared anew
    /// before. If one of them is a standby that was promoted, the connections to the former primary
    /// are not used any more. If one is another primary of the same timeline, none is used before
    /// all hosts were compared again.
    fn compare_later(server: &Server, since: u64, late: Vec<Host>, limit: Duration) {
        for host in late {
            // Between two questions this keeps nothing of the client alive.
            let identity = Arc::downgrade(&server.identity);
            let mut server = server.clone();
            server.identity = Arc::default();
            tokio::spawn(async move {
                let mut pause = limit;
                while let Some(identity) = identity.upgrade()
                    && identity.is_settled(since)
                {
                    server.identity = identity;
                    match Link::state_of(&server, &host, limit).await {
                        Err(e) if e.kind() == Unavailable => {}
                        Ok(who) if !who.is_standby => {
                            // An event tells of a host that is another database.
                            if let Ok(None) = server.identity.check(&who) {
                                server.identity.doubt();
                                server.identity.leave();
                            }
                            return;
                        }
                        _ => return,
                    }
                    server.identity = Arc::default();
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE);
                }
            });
        }
    }

    /// Asks this host who it is, over a connection of its own.
    async fn state_of(server: &Server, host: &Host, limit: Duration) -> Result<Who> {
        let (link, _) = Link::open_at(server, host, limit).await?;
        link.ask_identity(limit).await
    }

    /// Connects, and asks the server who it is.
    async fn introduced(server: &Server, host: &Host, limit: Duration) -> Result<(Opened, Who)> {
        let (link, notifications) = Link::open_at(server, host, limit).await?;
        let who = link.ask_identity(limit).await;
        let who = who.map_err(|e| at(host, e))?;
        if who.is_standby && server.hosts.len() > 1 {
            return Err(at(
                host,
                Failure::new(Unavailable, "it is a standby").into(),
            ));
        }
        Ok(((link, notifications), who))
    }

    /// Notes that it leads to the primary of this number.
    fn leads_to(&self, era: u64) {
        self.era.store(era, Ordering::Relaxed);
    }

    /// Asks again which server is at the other end, where that may have changed without an end of
    /// the connection, as behind a pooler. Another store's connection is closed.
    pub(crate) async fn confirm(&self, limit: Duration) -> Result<()> {
        let who = self.ask_identity(limit).await?;
        if who.is_standby {
            return Err(Failure::new(Unavailable, STANDBY).into());
        }
        match self.identity.follow(&who) {
            Ok(era) => self.leads_to(era),
            Err(e) => {
                // It did not break: that would speak for a server that was restarted.
                self.end();
                return Err(e);
            }
        }
        Ok(())
    }

    async fn ask_identity(&self, limit: Duration) -> Result<Who> {
        let mut next = self.identity.question();
        while let Some(question) = next {
            match self.ask(&Request::new(&question.into()), limit).await {
                Ok(rows) => return self.identity.read(&rows),
                Err(failure) if failure.may_pass() => return Err(failure.of_a_read().into()),
                Err(failure) => next = self.identity.was_refused(question, &failure),
            }
        }
        let rows = self.ask(&Request::new(&ROLE.into()), limit).await;
        Who::unknown(&rows.map_err(Failure::of_a_read)?)
    }

    async fn open_at(server: &Server, host: &Host, limit: Duration) -> Result<Opened> {
        let connected = Box::pin(connect(server, host, limit)).await;
        let (client, messages) = connected.map_err(|e| at(host, e))?;
        let (sender, notifications) = unbounded_channel();
        let identity = server.identity.clone();
        // A stream that has failed repeats its error for ever.
        let messages = messages.take_while(move |message| {
            if message.is_err() {
                identity.interrupted();
            }
            ready(message.is_ok())
        });
        let driver = tokio::spawn(messages.for_each(move |message| {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                // Most connections have no listener.
                let _ = sender.send(notification);
            }
            ready(())
        }));
        let used = AtomicU64::new(Moment::now().as_nanos());
        let link = Link {
            carrier: Carrier::Own(client, driver.abort_handle()),
            is_cut: AtomicBool::new(false),
            used,
            era: AtomicU64::new(0),
            identity: server.identity.clone(),
        };
        Ok((link, notifications))
    }

    /// Borrows a connection from a pool, and asks it who it is and in which state it is. One that
    /// somebody has left in a transaction, or with another encoding, is closed: it would take
    /// what a claim has written back, or read another name. One that has another role than the
    /// first one, or may not write, goes back to the pool, and the last one of several is closed.
    /// One that leads to another database or a standby goes back. The limit applies to each step.
    pub(crate) async fn borrow_from(
        pool: &dyn ConnectionPool,
        identity: &Arc<DatabaseIdentity>,
        sessions: &Sessions,
        limit: Duration,
        permit: OwnedSemaphorePermit,
    ) -> Result<Link, Failure> {
        let permit = Arc::new(permit);
        let mut unfit = String::new();
        for attempt in 1..=ATTEMPTS {
            let lent = match timeout(limit, pool.get()).await {
                Ok(Ok(connection)) => Lent::new(connection, &permit),
                Ok(Err(e)) => return Err(Failure::of_lending(pool.name(), e)),
                Err(_) => {
                    if let Ok(Some(e)) = timeout(limit / 2, pool.trouble()).await {
                        return Err(Failure::of_lending(pool.name(), e));
                    }
                    let why = format!("{} lent no connection within {limit:?}", pool.name());
                    return Err(Failure::broken(Unavailable, why).for_lack_of_room());
                }
            };
            let link = Link {
                carrier: Carrier::Lent(lent),
                is_cut: AtomicBool::new(false),
                used: AtomicU64::new(Moment::now().as_nanos()),
                era: AtomicU64::new(0),
                identity: identity.clone(),
            };
            match link.introduce_lent(sessions, limit).await {
                Ok((session, who)) => {
                    let era = identity.follow(&who).map_err(|e| Failure::of(&e))?;
                    if who.is_standby {
                        return Err(Failure::broken(Unavailable, STANDBY));
                    }
                    sessions.admit(session);
                    link.leads_to(era);
                    return Ok(link);
                }
                Err(Unfit::Closed(why)) => {
                    unfit = format!("{why}, which were closed");
                    link.cut();
                }
                Err(Unfit::GoesBack(why)) => {
                    unfit = why;
                    if attempt == ATTEMPTS {
                        // Perhaps all are like this, and a new one is not.
                        link.cut();
                    }
                }
                Err(Unfit::Failure(failure)) => {
                    if failure.broken {
                        link.cut();
                    }
                    return Err(failure.of_a_read());
                }
            }
        }
        let name = pool.name();
        let why = format!("{name} lends connections {unfit}");
        Err(Failure::broken(Unavailable, why))
    }

    /// Asks a borrowed connection in which state its session is, and who it is. A refusal of the
    /// question counts only if the session is fit.
    async fn introduce_lent(
        &self,
        sessions: &Sessions,
        limit: Duration,
    ) -> Result<(Session, Who), Unfit> {
        let mut question = self.identity.question();
        let mut refusals = Vec::new();
        let answer = loop {
            let answer = self.state_and(question.unwrap_or(ROLE), limit).await;
            match (answer, question) {
                (Err(failure), Some(asked)) if !failure.may_pass() => {
                    question = DatabaseIdentity::next_question(asked);
                    refusals.push((asked, failure));
                }
                (answer, _) => break answer,
            }
        };
        let is_known = question.is_some();
        let texts = answer.map_err(|failure| match failure {
            failure if failure.is_aborted => Unfit::Closed(IN_TRANSACTION),
            failure if failure.is_canceled => {
                Unfit::GoesBack("that end a small request (statement_timeout)".to_owned())
            }
            failure => Unfit::Failure(failure),
        })?;
        let Some((session, rest)) = Session::read(&texts) else {
            return Err(Unfit::Failure(Failure::of(&junk("its state"))));
        };
        if let Some(why) = session.defect() {
            return Err(Unfit::Closed(why));
        }
        let types = [Type::BOOL, Type::INT8, Type::INT8, Type::TEXT];
        let columns = types.map(|r#type| (String::new(), r#type.oid()));
        let row = Row::from_texts(columns, rest.iter().cloned());
        let who = match is_known {
            true => self.identity.read(&[row]),
            false => Who::unknown(&[row]),
        };
        let who = who.map_err(|e| Unfit::Failure(Failure::of(&e)))?;
        // The sessions of a standby may be read-only, which says less.
        if !who.is_standby
            && let Some(why) = sessions.refusal(&session)
        {
            return Err(Unfit::GoesBack(why));
        }
        for (asked, failure) in refusals {
            self.identity.was_refused(asked, &failure);
        }
        Ok((session, who))
    }

    /// Asks this question, and before it for the state of the session.
    async fn state_and(
        &self,
        question: &str,
        limit: Duration,
    ) -> Result<Vec<Option<String>>, Failure> {
        let sql = format!("SELECT {STATE}, who.* FROM ({question}) who");
        let rows = self.execute(&sql, limit).await?;
        rows.into_iter()
            .next()
            .ok_or_else(|| Failure::of(&junk("its state")))
    }

    /// Sends a request, and waits for its answer within this limit. A connection that does not
    /// answer in time is closed.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        match &self.carrier {
            Carrier::Own(client, _) => {
                let asked = request.ask(client);
                self.answered(asked.map_err(Failure::of_borrowed), limit)
                    .await
            }
            Carrier::Lent(lent) => self.answered(lent.query(request), limit).await,
        }
    }

    /// Sends a request in a transaction of the isolation level that locks need, for sessions with
    /// another default: on a connection of our own, three statements in one flight. If `BEGIN`
    /// fails, the functions detect the other isolation level, and refuse.
    pub(crate) async fn ask_isolated(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let client = match &self.carrier {
            Carrier::Own(client, _) => client,
            Carrier::Lent(lent) => {
                return self.answered(lent.query_isolated(request), limit).await;
            }
        };
        let all = join3(
            client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            request.ask(client),
            client.batch_execute("COMMIT"),
        );
        let committed = all.map(|(begun, answer, committed)| {
            begun.map_err(PoolError::Client)?;
            let rows = answer?;
            committed.map(|()| rows).map_err(PoolError::Client)
        });
        self.answered(committed.map_err(Failure::of_borrowed), limit)
            .await
    }

    /// Executes statements without parameters, within this limit, and returns their rows.
    pub(crate) async fn execute(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Vec<Option<String>>>, Failure> {
        match &self.carrier {
            Carrier::Own(client, _) => {
                let asked = simple_query(client, sql);
                self.answered(asked.map_err(Failure::of_borrowed), limit)
                    .await
            }
            Carrier::Lent(lent) => self.answered(lent.simple_query(sql), limit).await,
        }
    }

    async fn answered<T>(
        &self,
        asked: impl Future<Output = Result<T, Failure>>,
        limit: Duration,
    ) -> Result<T, Failure> {
        let answer = timeout(limit, asked).await;
        self.used.store(Moment::now().as_nanos(), Ordering::Relaxed);
        answer.unwrap_or_else(|_| {
            self.cut();
            Err(Failure::broken(Ambiguous, "no answer in time"))
        })
    }

    /// Returns whether the connection can still be used.
    pub(crate) fn is_open(&self) -> bool {
        let era = self.era.load(Ordering::Relaxed);
        let is_cut = self.is_cut.load(Ordering::Acquire) || self.identity.is_former(era);
        !is_cut
            && match &self.carrier {
                Carrier::Own(client, driver) => !client.is_closed() && !driver.is_finished(),
                Carrier::Lent(lent) => lent.is_open(),
            }
    }

    /// The time since the last use.
    pub(crate) fn idle(&self) -> Duration {
        Moment::now().since(Moment::from_nanos(self.used.load(Ordering::Relaxed)))
    }

    /// Returns whether a pool of the program has lent the connection.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.carrier, Carrier::Lent(_))
    }

    /// Notes how a request on it has ended.
    pub(crate) fn ended<T>(&self, answer: &Result<T, Failure>) {
        if answer.as_ref().is_err_and(|failure| failure.broken) {
            self.cut();
        }
        if let Carrier::Lent(lent) = &self.carrier {
            lent.ended(answer.as_ref().err());
        }
    }

    /// Returns whether it is lent, and its session may have been the reason why a request failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(&self.carrier, Carrier::Lent(lent) if lent.has_failed())
    }

    /// Returns whether it is lent, and no request may succeed in its session.
    pub(crate) fn is_useless(&self) -> bool {
        matches!(&self.carrier, Carrier::Lent(lent) if lent.is_useless())
    }

    /// Closes the socket of a connection that broke, also while requests are under way.
    pub(crate) fn cut(&self) {
        self.identity.interrupted();
        self.end();
    }

    fn end(&self) {
        self.is_cut.store(true, Ordering::Release);
        match &self.carrier {
            Carrier::Own(_, driver) => driver.abort(),
            Carrier::Lent(lent) => lent.discard(),
        }
    }
}

/// Names the host in an error. Errors about TLS do so already.
fn at(host: &Host, e: Error) -> Error {
    match is_of_tls(&e) {
        true => e,
        false => Error::new(e.kind(), format!("{host}: {e}")),
    }
}

fn no_host() -> Error {
    Failure::new(Unavailable, "no host").into()
}

/// A host that takes writes, with a connection to it, in the order of the answers.
type Found<'a> = (&'a Host, Opened, Who);

/// Chooses the primary among the hosts that answered: the one of the greatest timeline, if all of
/// them are one database, and no two of them are primaries of one timeline.
async fn latest(server: &Server, each: Vec<Result<Found<'_>>>, limit: Duration) -> Result<Opened> {
    let mut failure = None;
    let mut primaries = Vec::new();
    for host in each {
        match host {
            Ok(primary) => primaries.push(primary),
            Err(e) => failure = Some(e),
        }
    }
    let known = server.identity.id();
    let (right, others): (Vec<_>, Vec<_>) = match &known {
        Some(_) => primaries.into_iter().partition(|(.., who)| who.id == known),
        None => (primaries, Vec::new()),
    };
    let different = right.windows(2).find(|pair| pair[0].2.id != pair[1].2.id);
    if let Some([(one, _, first), (other, _, second)]) = different {
        let shown = |who: &Who| {
            who.id
                .as_ref()
                .map_or("an unknown one".into(), ToString::to_string)
        };
        let what = format!(
            "the hosts are different databases, whose locks are different ones: {one} is {}, and {other} is {}. Name the servers of one",
            shown(first),
            shown(second)
        );
        return Err(Error::new(OtherStore, what));
    }
    let newest = right.iter().map(|(.., who)| who.timeline).max();
    let newest = right
        .into_iter()
        .filter(|(.., who)| Some(who.timeline) == newest)
        .collect();
    let mut right = without_twins(server, newest, limit).await?;
    match right.pop().or_else(|| others.into_iter().next()) {
        Some((host, opened, who)) => {
            let era = server.identity.choose(&who).map_err(|e| at(host, e))?;
            opened.0.leads_to(era);
            Ok(opened)
        }
        None => Err(failure.unwrap_or_else(no_host)),
    }
}

/// Refuses hosts that are primaries of one timeline at the same time: one is a copy of the other.
/// Two different starts may also be those of one server that was restarted between its answers, so
/// both are asked again, the one that answered first at last.
async fn without_twins<'a>(
    server: &Server,
    mut all: Vec<Found<'a>>,
    limit: Duration,
) -> Result<Vec<Found<'a>>> {
    let twins = |all: &[Found<'_>]| {
        let is_first = |nth: &usize| {
            all[nth + 1..]
                .iter()
                .any(|it| it.2.is_twin_of(&all[*nth].2))
        };
        let first = (0..all.len()).find(is_first)?;
        let second = all.iter().position(|it| it.2.is_twin_of(&all[first].2))?;
        Some([second, first])
    };
    // Behind a pooler the second answer may be another one than the first.
    'compared: for _ in 0..2 * server.hosts.len() {
        let Some(twins) = twins(&all) else {
            return Ok(all);
        };
        for nth in twins {
            let (_, (link, _), before) = &all[nth];
            match link.ask_identity(limit).await {
                Ok(now) if now == *before => {}
                Ok(now) if !now.is_standby => {
                    all[nth].2 = now;
                    continue 'compared;
                }
                _ => {
                    all.remove(nth);
                    continue 'compared;
                }
            }
        }
        server.identity.doubt();
        let [other, one] = twins.map(|nth| &all[nth]);
        let id = one.2.id.as_ref();
        let what = format!(
            "{} and {} are both primaries of {}, in the same timeline, and were started at different times: one is a copy of the other, with locks \
             of its own. Stop it, or make it a standby",
            one.0,
            other.0,
            id.map_or("one database", leasehold_core::StoreId::as_str)
        );
        return Err(Error::new(OtherStore, what));
    }
    let what = "the hosts are restarted all the time, or are poolers that lead to several servers by turns";
    Err(Failure::new(Unavailable, what).into())
}

/// The beginning of the error of a lookup, which has no kind of its own.
const NO_HOST: &str = "failed to lookup address information";

/// Connects to this host as the store does, for a tool beside it.
pub(crate) async fn session(server: &Server, host: &Host, limit: Duration) -> Result<Client> {
    let (client, messages) = connect(server, host, limit).await?;
    let messages = messages.take_while(|message| ready(message.is_ok()));
    tokio::spawn(messages.for_each(|_| ready(())));
    Ok(client)
}

/// Connects to this host by the first way by which it lets us in. Returns the client, and the
/// messages that have to be polled for it.
async fn connect(server: &Server, host: &Host, limit: Duration) -> Result<(Client, Messages)> {
    let credentials = async {
        let (user, password) = server.user().await?;
        let password = server.password(host, &user, password).await?;
        Ok::<_, Error>((user, password))
    };
    let (user, password) = timeout(limit, credentials)
        .await
        .map_err(|_| late("asking for the credentials"))??;
    let mut settings = server.settings.clone();
    settings.user(user).dbname(&server.database);
    if settings.get_application_name().is_none() {
        settings.application_name("leasehold");
    }
    if let Some(password) = password {
        settings.password(password);
    }
    if host.is_socket() {
        if server.is_tls_demanded {
            let what = "Config::tls asks for TLS, and a Unix socket has none: name a host";
            return Err(Error::new(leasehold_core::ErrorKind::Invalid, what));
        }
        settings.ssl_mode(SslMode::Disable);
        return connect_to_socket(host, &settings, limit).await;
    }
    let mut refusal = None;
    for (nth, tls) in server.ways.iter().enumerate() {
        let is_last = nth + 1 == server.ways.len();
        settings.ssl_mode(match tls {
            None => SslMode::Disable,
            Some(_) if is_last => SslMode::Require,
            Some(_) => SslMode::Prefer,
        });
        match connect_by(tls.as_ref(), host, &settings, limit).await {
            Err(e) if !is_last && is_of_encryption(&e, tls.is_some()) => {
                refusal = Some((tls.is_some(), e));
            }
            // Over TLS the server says more about what it lacks.
            Err(e) if is_of_encryption(&e, tls.is_some()) => {
                let by_tls = refusal.filter(|(by_tls, _)| *by_tls);
                return Err(by_tls.map_or(e, |(_, e)| e));
            }
            ended => return ended,
        }
    }
    Err(no_host())
}

/// Connects over TLS with these settings, or in plain text.
async fn connect_by(
    tls: Option<&Tls>,
    host: &Host,
    settings: &Settings,
    limit: Duration,
) -> Result<(Client, Messages)> {
    let tcp = timeout(limit, TcpStream::connect((host.name.as_str(), host.port))).await;
    let tcp = tcp
        .map_err(|_| late("connecting"))?
        .and_then(|tcp| keep_alive(&tcp, settings).map(|()| tcp))
        .map_err(|e| of_socket(&e, "port"))?;
    #[cfg(feature = "tls-no-provider")]
    if let Some(tls) = tls {
        let connecting = crate::client::secure::connect(tls, host, tcp, settings);
        let connected = timeout(limit, connecting).await;
        let (client, mut connection) = connected.map_err(|_| silent())??;
        return Ok((
            client,
            Box::pin(stream_fn(move |context| connection.poll_message(context))),
        ));
    }
    #[cfg(not(feature = "tls-no-provider"))]
    let _ = tls;
    plainly(tcp, settings, limit).await
}

/// Connects to the Unix socket in a folder, which is never over TLS.
#[cfg(unix)]
async fn connect_to_socket(
    host: &Host,
    settings: &Settings,
    limit: Duration,
) -> Result<(Client, Messages)> {
    let path = format!("{}/.s.PGSQL.{}", host.name, host.port);
    let socket = timeout(limit, tokio::net::UnixStream::connect(&path)).await;
    let socket = socket
        .map_err(|_| late("connecting"))?
        .map_err(|e| of_socket(&e, "socket"))?;
    plainly(socket, settings, limit).await
}

#[cfg(not(unix))]
async fn connect_to_socket(
    _host: &Host,
    _settings: &Settings,
    _limit: Duration,
) -> Result<(Client, Messages)> {
    let why = "this system has no Unix sockets: name a host";
    Err(Failure::new(leasehold_core::ErrorKind::Unsupported, why).into())
}

/// Begins a session in plain text.
async fn plainly(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    settings: &Settings,
    limit: Duration,
) -> Result<(Client, Messages)> {
    let connected = timeout(limit, settings.connect_raw(stream, NoTls))
        .await
        .map_err(|_| silent())?;
    let (client, mut connection) =
        connected.map_err(|e| Error::from(Failure::of_connecting(&e)))?;
    Ok((
        client,
        Box::pin(stream_fn(move |context| connection.poll_message(context))),
    ))
}

/// Sets what the settings say of a connection, and that small requests are sent at once.
fn keep_alive(tcp: &TcpStream, settings: &Settings) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    if settings.get_keepalives() {
        let mut alive = TcpKeepalive::new().with_time(settings.get_keepalives_idle());
        if let Some(interval) = settings.get_keepalives_interval() {
            alive = alive.with_interval(interval);
        }
        if let Some(count) = settings.get_keepalives_retries() {
            alive = alive.with_retries(count);
        }
        socket.set_tcp_keepalive(&alive)?;
    }
    #[cfg(target_os = "linux")]
    if let Some(time) = settings.get_tcp_user_timeout() {
        socket.set_tcp_user_timeout(Some(*time))?;
    }
    Ok(())
}

fn silent() -> Error {
    let why = "it takes connections and does not answer: is it stopped, or overloaded, or no PostgreSQL? Behind a pooler, it may be the server";
    Failure::new(Unavailable, why).into()
}

fn late(what: &str) -> Error {
    Failure::new(Unavailable, format!("{what} took too long")).into()
}

/// The error of a socket that could not be connected, at a `port` or as a file.
fn of_socket(e: &io::Error, what: &str) -> Error {
    let why = match e.kind() {
        ConnectionRefused => {
            format!("nothing listens at this {what}: is it running there, and is the {what} right?")
        }
        NotFound if what == "socket" => {
            "no socket is there: is it running, and are the folder (host) and the port right?"
                .into()
        }
        _ if e.to_string().starts_with(NO_HOST) => {
            format!("the host name cannot be looked up: is it written right? ({e})")
        }
        _ => e.to_string(),
    };
    Failure::new(Unavailable, why).into()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Config;

    /// The error of a client with these words that connects and says nothing.
    #[cfg(feature = "tls-no-provider")]
    async fn refused(words: &str) -> Error {
        use std::io::Read;

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let config = Config::from_url(&format!("postgres://me:s3cret@{addr}/db?{words}")).unwrap();
        let limit = Duration::from_secs(10);
        let connected = connect(&config.server, &config.server.hosts[0], limit).await;
        let Err(error) = connected else {
            panic!("nobody is there")
        };
        let mut said = Vec::new();
        let (mut client, _) = listener.accept().unwrap();
        client.set_nonblocking(false).unwrap();
        client.read_to_end(&mut said).unwrap();
        assert!(said.is_empty() && listener.accept().is_err(), "{said:?}");
        error
    }

    #[cfg(feature = "tls-no-provider")]
    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_no_reason_for_plain_text() {
        for mode in ["sslmode=prefer&", ""] {
            let words = format!("{mode}sslcert=/no/me.pem&sslkey=/no/me.key");
            let error = refused(&words).await;
            assert_eq!(error.kind(), leasehold_core::ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("/no/me"), "{error}");
        }
    }

    #[cfg(feature = "tls-no-provider")]
    #[tokio::test]
    async fn tls_that_code_asks_for_is_not_forgotten_on_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("postgres://me@/db?host={}", folder.path().display());
        let config = Config::from_url(&url).unwrap();
        let limit = Duration::from_secs(10);
        for (config, says) in [
            (config.clone(), "socket"),
            (config.tls(Tls::new()), "Config::tls"),
        ] {
            let connected = connect(&config.server, &config.server.hosts[0], limit).await;
            let error = connected.err().map(|e| e.to_string());
            assert!(
                error.as_ref().is_some_and(|e| e.contains(says)),
                "{error:?}"
            );
        }
    }

    /// Also before its task has heard of that: whoever waits for a connection is not given this one.
    #[tokio::test]
    async fn a_connection_that_did_not_answer_is_open_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = async {
            let (mut client, _) = listener.accept().await.unwrap();
            assert!(client.read(&mut [0; 1024]).await.unwrap() > 0);
            // It lets everybody in, and answers nothing.
            let welcome = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
            client.write_all(welcome).await.unwrap();
            client
        };
        let config = Config::from_url(&format!(
            "postgres://user:word@{addr}/database?sslmode=disable"
        ))
        .unwrap();
        let long = Duration::from_secs(10);
        let (opened, _client) = tokio::join!(
            Link::open_at(&config.server, &config.server.hosts[0], long),
            server
        );
        let (link, _) = opened.unwrap();
        assert!(link.is_open());
        let asked = Request::new(&"SELECT 1".into());
        let failure = link
            .ask(&asked, Duration::from_millis(1))
            .await
            .unwrap_err();
        assert!(failure.broken && !link.is_open());
    }
}

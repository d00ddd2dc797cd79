//! PostgreSQL: a row that is updated, and updated back.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, TTL, Tries};

/// As many as ours has for its verbs.
const CONNECTIONS: usize = 4;
const HOLDER: &str = "0123456789abcdef0123456789abcdef";

/// A connection, and what is prepared there: so each request is one flight of messages, and nothing is parsed or planned again.
struct Link {
    client: Client,
    insert: Statement,
    take: Statement,
    give: Statement,
}

/// An `UPDATE` that takes a row which nobody has, and one that gives it back: each is a transaction of its own.
#[derive(Clone)]
pub struct Updates {
    links: Arc<[Link]>,
    /// These have a row.
    known: Arc<Mutex<HashSet<String>>>,
}

impl Updates {
    pub async fn connect(server: &Server) -> Result<Updates> {
        let Server::Postgres(postgres) = server else {
            return Err("this talks to PostgreSQL".into());
        };
        let table = "CREATE TABLE IF NOT EXISTS raw (name text PRIMARY KEY, holder text, until timestamptz) WITH (fillfactor = 45)";
        postgres
            .query(&format!("{table}; GRANT ALL ON raw TO PUBLIC"))
            .await?;
        let mut links = Vec::new();
        for _ in 0..CONNECTIONS {
            links.push(Link::open(&postgres.url().parse()?).await?);
        }
        Ok(Updates {
            links: links.into(),
            known: Arc::default(),
        })
    }

    /// The same for each name.
    fn link(&self, name: &str) -> &Link {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        &self.links[hasher.finish() as usize % CONNECTIONS]
    }
}

impl Link {
    async fn open(config: &Config) -> Result<Link> {
        let (client, connection) = config.connect(NoTls).await?;
        // It ends with the client.
        tokio::spawn(connection);
        let insert = client
            .prepare("INSERT INTO raw VALUES ($1) ON CONFLICT DO NOTHING")
            .await?;
        let take = "UPDATE raw SET holder = $2, until = now() + $3 * interval '1 millisecond' \
                    WHERE name = $1 AND (holder IS NULL OR until < now())";
        let take = client
            .prepare_typed(take, &[Type::TEXT, Type::TEXT, Type::FLOAT8])
            .await?;
        let give = client
            .prepare("UPDATE raw SET holder = NULL WHERE name = $1 AND holder = $2")
            .await?;
        Ok(Link {
            client,
            insert,
            take,
            give,
        })
    }
}

impl Subject for Updates {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, name: String) -> Result<()> {
        let link = self.link(&name);
        match link.client.execute(&link.give, &[&name, &HOLDER]).await? {
            1 => Ok(()),
            _ => Err("it was gone".into()),
        }
    }
}

impl Tries for Updates {
    async fn try_acquire(&self, name: &str) -> Result<Option<String>> {
        let link = self.link(name);
        let is_known = |known: &Mutex<HashSet<String>>| {
            known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(name)
        };
        if !is_known(&self.known) {
            link.client.execute(&link.insert, &[&name]).await?;
            self.known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(name.into());
        }
        let taken = link
            .client
            .execute(&link.take, &[&name, &HOLDER, &(TTL.as_millis() as f64)])
            .await?;
        Ok((taken == 1).then(|| name.into()))
    }
}

//! etcd: its own transactions, and its lock service.

use etcd_client::{Client, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, TTL, Tries};

async fn connect(server: &Server) -> Result<(Client, i64)> {
    let Server::Etcd(etcd) = server else {
        return Err("this talks to etcd".into());
    };
    let mut client = Client::connect([etcd.addr()], None).await?;
    let lease = client
        .lease_grant(TTL.as_secs() as i64 * 10, None)
        .await?
        .id();
    Ok((client, lease))
}

/// A transaction that puts a key if there is none, and its deletion. One lease for all.
#[derive(Clone)]
pub struct PutAndDelete(Client, i64);

impl PutAndDelete {
    pub async fn connect(server: &Server) -> Result<PutAndDelete> {
        let (client, lease) = connect(server).await?;
        Ok(PutAndDelete(client, lease))
    }
}

impl Subject for PutAndDelete {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, key: String) -> Result<()> {
        self.0.kv_client().delete(key, None).await?;
        Ok(())
    }
}

impl Tries for PutAndDelete {
    async fn try_acquire(&self, name: &str) -> Result<Option<String>> {
        let key = format!("raw {name}");
        let put = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(self.1)));
        let free = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let answer = self
            .0
            .kv_client()
            .txn(Txn::new().when([free]).and_then([put]))
            .await?;
        Ok(answer.succeeded().then_some(key))
    }
}

/// `Lock` and `Unlock`, which the server does with Go's `concurrency.Mutex`. One lease is one client of it.
#[derive(Clone)]
pub struct LockService(Client, i64);

impl LockService {
    pub async fn connect(server: &Server) -> Result<LockService> {
        let (client, lease) = connect(server).await?;
        Ok(LockService(client, lease))
    }
}

impl Subject for LockService {
    type Held = Vec<u8>;

    async fn acquire(&self, name: &str) -> Result<Vec<u8>> {
        let options = LockOptions::new().with_lease(self.1);
        let answer = self
            .0
            .lock_client()
            .lock(format!("service {name}"), Some(options))
            .await?;
        Ok(answer.key().to_vec())
    }

    async fn release(&self, key: Vec<u8>) -> Result<()> {
        self.0.lock_client().unlock(key).await?;
        Ok(())
    }
}

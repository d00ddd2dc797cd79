//! ZooKeeper: a node's creation and deletion, and the lock of the client crate.

use zookeeper_client::{Acls, Client, CreateMode, Error, LockOptions, LockPrefix};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, Tries};

/// Parents of nothing but ephemeral nodes.
const FOLDERS: [&str; 2] = ["/raw", "/client"];

async fn connect(server: &Server) -> Result<Client> {
    let Server::ZooKeeper(zookeeper) = server else {
        return Err("this talks to ZooKeeper".into());
    };
    let client = Client::connect(zookeeper.addr()).await?;
    for folder in FOLDERS {
        match client
            .create(
                folder,
                b"",
                &CreateMode::Persistent.with_acls(Acls::anyone_all()),
            )
            .await
        {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(client)
}

/// An ephemeral node, created and deleted.
#[derive(Clone)]
pub struct CreateAndDelete(Client);

impl CreateAndDelete {
    pub async fn connect(server: &Server) -> Result<CreateAndDelete> {
        Ok(CreateAndDelete(connect(server).await?))
    }
}

impl Subject for CreateAndDelete {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, path: String) -> Result<()> {
        Ok(self.0.delete(&path, None).await?)
    }
}

impl Tries for CreateAndDelete {
    async fn try_acquire(&self, name: &str) -> Result<Option<String>> {
        let path = format!("/raw/{name}");
        match self
            .0
            .create(
                &path,
                b"",
                &CreateMode::Ephemeral.with_acls(Acls::anyone_all()),
            )
            .await
        {
            Ok(_) => Ok(Some(path)),
            Err(Error::NodeExists) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// The lock of `zookeeper-client`.
#[derive(Clone)]
pub struct ClientLock(Client);

impl ClientLock {
    pub async fn connect(server: &Server) -> Result<ClientLock> {
        Ok(ClientLock(connect(server).await?))
    }
}

impl Subject for ClientLock {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        let parent = format!("/client/{name}");
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
        let lock = self
            .0
            .lock(LockPrefix::new_curator(&parent, "n")?, b"", options)
            .await?;
        let path = lock.lock_path().to_owned();
        // Dropped, it would be deleted in the background: here it is waited for.
        std::mem::forget(lock);
        Ok(path)
    }

    async fn release(&self, path: String) -> Result<()> {
        Ok(self.0.delete(&path, None).await?)
    }
}

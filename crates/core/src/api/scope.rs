//! One client of a store, a namespace in it and the options of its locks: what every primitive is made of.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::api::options::Options;
use crate::backend::completion::Completion;
use crate::backend::completions::Completions;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;
use crate::backend::token::FencingToken;
use crate::engine::client::Client;
use crate::engine::completing::unsupported;
use crate::engine::local_once::LocalOnce;
use crate::engine::local_queue::LocalQueues;

/// A question for names, as the store sees it.
struct Listing {
    /// The beginning of each name, which the user does not see.
    inside: String,
    prefix: String,
    after: Option<Name>,
}

#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) client: Arc<Client>,
    pub(crate) local_queues: Arc<LocalQueues>,
    pub(crate) local_once: Arc<LocalOnce>,
    pub(crate) defaults: Options,
    namespace: SmolStr,
}

impl Scope {
    pub(crate) fn new(client: Client) -> Scope {
        let client = Arc::new(client);
        let local_queues = Arc::default();
        Scope {
            client,
            local_queues,
            local_once: Arc::default(),
            defaults: Options::default(),
            namespace: SmolStr::default(),
        }
    }

    /// Puts every name inside of `prefix/` from now on.
    pub(crate) fn enter(&mut self, prefix: &str) {
        if !prefix.is_empty() {
            let inner = Name::new(prefix).within(&self.namespace);
            self.namespace = inner.as_str().into();
        }
    }

    /// A checked name, as the store sees it.
    pub(crate) fn full_name(&self, name: &Name) -> Result<Name> {
        name.check()?;
        self.existing_name(name)
    }

    /// A name to look up, as the store sees it.
    fn existing_name(&self, name: &Name) -> Result<Name> {
        name.check_existing()?;
        no_nul("a namespace", &self.namespace)?;
        Ok(name.within(&self.namespace))
    }

    /// The holders and waiters of this name.
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let full = self.existing_name(name)?;
        let mut queue = self
            .client
            .ask(self.client.backend.inspect(&full))
            .await
            .map_err(|e| e.with_name(name))?;
        for holder in &mut queue.holders {
            self.local_queues
                .correct(&full, &mut holder.label, &mut holder.token);
        }
        Ok(queue)
    }

    /// Names under `prefix`, as the user knows them.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let Listing {
            inside,
            prefix,
            after,
        } = self.listing(prefix, after)?;
        let names = self
            .client
            .ask(self.client.backend.list(&prefix, after.as_ref(), limit))
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| name.as_str().strip_prefix(&inside).map(Name::new))
            .collect())
    }

    /// The question for names under `prefix`, as the store sees it.
    fn listing(&self, prefix: &str, after: Option<&Name>) -> Result<Listing> {
        let inside = if self.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", self.namespace)
        };
        let prefix = format!("{inside}{prefix}");
        no_nul("a prefix", &prefix)?;
        Ok(Listing {
            after: after.map(|name| name.within(&self.namespace)),
            inside,
            prefix,
        })
    }

    /// The completion of this name.
    pub(crate) async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let full = self.existing_name(name)?;
        self.client
            .ask(self.completions()?.completion(&full))
            .await
            .map_err(|e| e.with_name(name))
    }

    /// Removes the completion with this token. Returns whether there was one.
    pub(crate) async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let full = self.existing_name(name)?;
        self.client
            .ask(self.completions()?.forget(&full, token))
            .await
            .map_err(|e| e.with_name(name))
    }

    /// Completions of names under `prefix`, as the user knows them.
    pub(crate) async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let Listing {
            inside,
            prefix,
            after,
        } = self.listing(prefix, after)?;
        let completions = self.completions()?;
        let all = self
            .client
            .ask(completions.list_completions(&prefix, after.as_ref(), limit))
            .await?;
        let inside = |(name, completion): (Name, Completion)| {
            let name = name.as_str().strip_prefix(&inside).map(Name::new)?;
            Some((name, completion))
        };
        Ok(all.into_iter().filter_map(inside).collect())
    }

    fn completions(&self) -> Result<&dyn Completions> {
        self.client.backend.completions().ok_or_else(unsupported)
    }

    /// Ends the hold with this token. Returns whether there was one.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let full = self.existing_name(name)?;
        if !self.local_queues.may_evict(&full, token) {
            self.client.ready()?;
            return Ok(false);
        }
        self.client
            .ask(self.client.backend.evict(&full, token))
            .await
            .map_err(|e| e.with_name(name))
    }
}

fn no_nul(what: &str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{what} may not contain NUL"),
        ));
    }
    Ok(())
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.client)
            .field("namespace", &self.namespace)
            .finish()
    }
}

//! Looking on: inspect, evict.

use std::time::SystemTime;

use leasehold_core::seam::{ClaimId, Mode};
use leasehold_core::{Entry, FencingToken, Line, Name, Result};
use leasehold_redis_client::{Call, Fields, junk, record};
use redis::Value;

use crate::Redis;
use crate::scripts::{EVICT, INSPECT, RELEASE};

impl Redis {
    pub(crate) async fn look(&self, name: &Name) -> Result<Line> {
        let call = Call::on(self.names.keys(name));
        let Value::Array(records) = self.run(&INSPECT, &call).await? else {
            return Err(junk("the answer to an inspection"));
        };
        let mut line = Line::default();
        for text in records {
            let text = record(&text)?;
            if text == "foreign" {
                line.holders.push(Entry::foreign());
                continue;
            }
            let mut fields = Fields::of(&text);
            let (token, since) = (fields.token()?, SystemTime::UNIX_EPOCH + fields.millis()?);
            let (kind, n, of) = (fields.word(), fields.value()?, fields.value()?);
            let mode = match kind {
                "shared" => Mode::Shared,
                "permits" => Mode::Permits { n, of },
                _ => Mode::Exclusive,
            };
            let entry = Entry::new(fields.text()).since(since).mode(mode);
            match token.get() {
                0 => line.waiters.push(entry),
                _ => line.holders.push(entry.token(token)),
            }
        }
        Ok(line)
    }

    pub(crate) async fn end(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let call = Call::on(self.names.keys(name)).arg(token);
        let answer = self.run(&EVICT, &call).await?;
        match record(&answer)?.as_str() {
            "evicted" => Ok(true),
            "evicted more" => {
                // Done; the release of nobody goes on for the others.
                let _ = self.run(&RELEASE, &Call::on(self.names.keys(name)).arg(ClaimId::fresh())).await;
                Ok(true)
            }
            "none" => Ok(false),
            _ => Err(junk("the answer to an eviction")),
        }
    }
}

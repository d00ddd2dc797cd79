//! Watches: the streams that carry them, and the messages to each.

use std::collections::BTreeMap;

use crate::etcd::kv::{Kv, PUT, includes};
use crate::etcd::messages::{CreateRequest, Event, Header, OfWatch, WatchResponse};

/// The watches of one stream.
#[derive(Default)]
pub(crate) struct Watches {
    all: BTreeMap<i64, Watched>,
    next: i64,
}

struct Watched {
    what: CreateRequest,
    /// Events before this revision were sent already.
    next: i64,
}

/// The number in answers about a watch that could not be made, and about a whole stream.
const NONE: i64 = -1;

impl Watches {
    /// Handles a client's message on the stream. Returns the answers.
    pub(crate) fn ask(&mut self, request: OfWatch, kv: &Kv) -> Vec<WatchResponse> {
        match request {
            OfWatch::Create(what) => self.create(what, kv),
            OfWatch::Cancel(watch) if self.all.remove(&watch.id).is_some() => {
                vec![WatchResponse {
                    canceled: true,
                    ..said(watch.id, kv.revision())
                }]
            }
            OfWatch::Cancel(_) => Vec::new(),
            OfWatch::Progress(_) => vec![said(NONE, kv.revision())],
        }
    }

    fn create(&mut self, mut what: CreateRequest, kv: &Kv) -> Vec<WatchResponse> {
        if what.key.is_empty() {
            what.key = vec![0];
        }
        let revision = kv.revision();
        if what.id != 0 && self.all.contains_key(&what.id) {
            return vec![WatchResponse {
                created: true,
                canceled: true,
                ..said(NONE, revision)
            }];
        }
        if what.id == 0 {
            while self.all.contains_key(&self.next) {
                self.next += 1;
            }
            what.id = self.next;
            self.next += 1;
        }
        let id = what.id;
        let next = if what.from == 0 {
            revision + 1
        } else {
            what.from
        };
        let created = WatchResponse {
            created: true,
            ..said(id, revision)
        };
        match kv.since(next) {
            Err(compacted) => {
                vec![
                    created,
                    WatchResponse {
                        canceled: true,
                        compacted,
                        ..said(id, revision)
                    },
                ]
            }
            Ok(events) => {
                let watched = Watched {
                    what,
                    next: next.max(revision + 1),
                };
                let events: Vec<Event> = events
                    .iter()
                    .filter_map(|event| watched.shows(event))
                    .collect();
                self.all.insert(id, watched);
                let told = (!events.is_empty()).then(|| WatchResponse {
                    events,
                    ..said(id, revision)
                });
                [created].into_iter().chain(told).collect()
            }
        }
    }

    /// The messages about the changes of a revision, for the watches that cover them.
    pub(crate) fn tell(&self, changes: &[Event], revision: i64) -> Vec<WatchResponse> {
        let told = |(id, watched): (&i64, &Watched)| {
            let events: Vec<Event> = changes
                .iter()
                .filter_map(|event| watched.shows(event))
                .collect();
            (!events.is_empty()).then(|| WatchResponse {
                events,
                ..said(*id, revision)
            })
        };
        self.all.iter().filter_map(told).collect()
    }
}

impl Watched {
    fn shows(&self, event: &Event) -> Option<Event> {
        let kv = event.kv.as_ref()?;
        let filtered = self.what.filters.contains(&i32::from(event.kind != PUT));
        let meant = includes(&self.what.key, &self.what.end, &kv.key)
            && !filtered
            && kv.modified >= self.next_of();
        meant.then(|| Event {
            before: event.before.clone().filter(|_| self.what.wants_before),
            ..event.clone()
        })
    }

    fn next_of(&self) -> i64 {
        if self.what.from == 0 {
            self.next
        } else {
            self.what.from
        }
    }
}

fn said(id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(Header {
            revision,
            ..Header::default()
        }),
        id,
        ..WatchResponse::default()
    }
}

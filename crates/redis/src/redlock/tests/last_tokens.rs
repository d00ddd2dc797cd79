//! A small model of one node's memory of tokens, searched completely: two names, a clock that goes
//! on and steps back, and keys that expire at any time once they may, or exist again if the clock
//! steps back before they were removed. The names are those of `node.lua`.

use std::collections::HashSet;

const NAMES: usize = 2;
/// The time for which a hash serves, and for which it stays after that; the time for which the
/// bound stays; the greatest lead of a proposal. All are steps of the clock.
const AGE: u8 = 2;
const SPARE: u8 = 1;
const KEPT: u8 = 4;
const AHEAD: u8 = 3;
/// The last instant, the number of claims, and the number of steps back.
const END: u8 = 8;
const CLAIMS: u8 = 4;
const STEPS: u8 = 2;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Ours,
    /// Nothing is kept of tokens that were forgotten.
    WithoutBound,
    /// A node does not notice that the older hash has expired.
    WithoutMark,
    /// Each name has a key that expires alone, and one more key has the latest clock of all claims.
    KeyOfEachName,
}

/// The last token of each name, or 0, and the instant at which they expire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Tokens {
    last: [u8; NAMES],
    ends: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Mark {
    bound: u8,
    older: u8,
    floor: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    clock: u8,
    latest: u8,
    tokens: Option<(Mark, Tokens)>,
    older: Option<Tokens>,
    /// The bound, and the instant at which it expires.
    bound: Option<(u8, u8)>,
    /// The last token of each name, and the instant at which its key expires.
    keys: [Option<(u8, u8)>; NAMES],
    /// The greatest token of each name that was ever given out.
    given: [u8; NAMES],
    claims: u8,
    steps: u8,
}

impl Node {
    const FIRST: Node = Node {
        clock: 1,
        latest: 1,
        tokens: None,
        older: None,
        bound: None,
        keys: [None; NAMES],
        given: [0; NAMES],
        claims: 0,
        steps: 0,
    };

    /// Every state to which one step leads, or a token that did not rise.
    fn next(&self, layout: Layout) -> Result<Vec<Node>, u8> {
        let mut next = Vec::new();
        for name in 0..NAMES {
            for proposal in [0, self.clock + 1, self.clock + AHEAD] {
                if self.claims < CLAIMS {
                    next.push(self.claim(layout, name, proposal)?);
                }
            }
        }
        if self.clock < END {
            next.push(Node {
                clock: self.clock + 1,
                latest: self.latest.max(self.clock + 1),
                ..*self
            });
        }
        if self.steps < STEPS {
            let clocks = self.latest.saturating_sub(KEPT).max(1)..self.clock;
            next.extend(clocks.map(|clock| Node {
                clock,
                steps: self.steps + 1,
                ..*self
            }));
        }
        // Expired keys may be removed before they are next read.
        next.extend([
            Node {
                tokens: self.tokens.filter(|(_, it)| it.ends > self.clock),
                ..*self
            },
            Node {
                older: self.older.filter(|it| it.ends > self.clock),
                ..*self
            },
            Node {
                bound: self.bound.filter(|it| it.1 > self.clock),
                ..*self
            },
            Node {
                keys: self.keys.map(|key| key.filter(|it| it.1 > self.clock)),
                ..*self
            },
        ]);
        Ok(next)
    }

    fn claim(mut self, layout: Layout, name: usize, proposal: u8) -> Result<Node, u8> {
        let clock = self.clock;
        let bound = self.bound.filter(|it| it.1 > clock).map_or(0, |it| it.0);
        let tokens = self.tokens.filter(|(_, it)| it.ends > clock);
        let older = self.older.filter(|it| it.ends > clock);
        let key = self.keys[name]
            .filter(|it| it.1 > clock)
            .map_or(0, |it| it.0);
        let forgot = Mark {
            bound,
            older: 0,
            floor: bound,
        };
        let (mut mark, mut hash) = tokens.unwrap_or((
            forgot,
            Tokens {
                last: [0; NAMES],
                ends: 0,
            },
        ));
        let mut last = key.max(hash.last[name]);
        if last == 0 && clock < mark.older {
            last = older.map_or(0, |it| it.last[name]);
            if older.is_none() && layout != Layout::WithoutMark {
                mark.floor = mark.floor.max(mark.older);
            }
        }
        let last = if last == 0 {
            clock.max(mark.floor)
        } else {
            last
        };
        let token = (last + 1).max(proposal.min(clock + AHEAD));
        if token <= self.given[name] {
            return Err(token);
        }
        (self.given[name], self.claims) = (token, self.claims + 1);
        if layout == Layout::KeyOfEachName {
            self.keys[name] = Some((token, token.max(clock) + SPARE));
            self.bound = Some((bound.max(clock), bound.max(clock) + KEPT));
            return Ok(self);
        }
        if tokens.is_none() || token > mark.bound {
            if tokens.is_some() && (clock >= mark.older || mark.older - clock > KEPT) {
                self.older = Some(hash);
                mark = Mark {
                    floor: mark.floor.max(mark.older),
                    older: mark.bound,
                    ..mark
                };
                hash.last = [0; NAMES];
            }
            mark.bound = mark.bound.max(token + AGE);
            if layout != Layout::WithoutBound {
                self.bound = Some((mark.bound, mark.bound.max(clock) + KEPT));
            }
            hash.ends = mark.bound.max(clock) + SPARE;
        }
        hash.last[name] = token;
        self.tokens = Some((mark, hash));
        Ok(self)
    }
}

/// Searches every run. Returns the number of states, or a token that did not rise.
fn search(layout: Layout) -> Result<usize, u8> {
    let mut seen = HashSet::from([Node::FIRST]);
    let mut open = vec![Node::FIRST];
    while let Some(node) = open.pop() {
        open.extend(
            node.next(layout)?
                .into_iter()
                .filter(|next| seen.insert(*next)),
        );
    }
    Ok(seen.len())
}

#[test]
fn tokens_rise_whatever_expires_and_however_the_clock_steps() {
    let states = search(Layout::Ours).unwrap();
    println!("{states} states");
    assert!(states > 100_000, "the model has shrunk to {states} states");
}

#[test]
fn without_the_bound_or_its_marks_tokens_fall() {
    for layout in [
        Layout::WithoutBound,
        Layout::WithoutMark,
        Layout::KeyOfEachName,
    ] {
        assert!(search(layout).is_err(), "{layout:?}");
    }
}

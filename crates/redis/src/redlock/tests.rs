//! A small model of the rule for tokens, searched completely: three nodes, two clients, one attempt
//! each, every order of deliveries, losses and early decisions.

mod last_tokens;

use std::collections::HashSet;

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// The nodes to which a token that fewer than a majority answered is written back.
#[derive(Clone, Copy, PartialEq)]
enum WriteBack {
    Nowhere,
    /// On any majority.
    Anywhere,
    /// On nodes that still hold the claim: the rule of this crate.
    WhereHeld,
}

/// One client's knowledge of one node. Requests to a node arrive in their order: claim, write-back,
/// release.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sent {
    Claim,
    Granted(u8),
    Refused,
    Written,
    NotWritten,
    Released,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Asking,
    /// This token is being written back.
    Writing(u8),
    Holding(u8),
    /// Released, given up or expired: nodes forget it at any time.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    sent: [Sent; NODES],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    last: [u8; NODES],
    holder: [Option<u8>; NODES],
    clients: [Client; 2],
    /// The greatest token that any client held so far.
    greatest: u8,
}

#[derive(Debug, PartialEq)]
enum Fault {
    TwoHold,
    TokenFell,
}

impl World {
    fn start(last: [u8; NODES]) -> World {
        let client = Client {
            phase: Phase::Asking,
            sent: [Sent::Claim; NODES],
        };
        World {
            last,
            holder: [None; NODES],
            clients: [client; 2],
            greatest: 0,
        }
    }

    /// Every world to which one step may lead.
    fn next(&self, proposals: [u8; 2], rule: WriteBack) -> Result<Vec<World>, Fault> {
        let mut next = Vec::new();
        for (c, client) in self.clients.iter().enumerate() {
            for n in 0..NODES {
                next.extend(self.deliver(c, n, proposals[c], rule));
            }
            match client.phase {
                Phase::Asking => {
                    let tokens = client.sent.iter().filter_map(|sent| {
                        if let Sent::Granted(t) = sent {
                            Some(*t)
                        } else {
                            None
                        }
                    });
                    let tokens: Vec<u8> = tokens.collect();
                    if let Some(&greatest) =
                        tokens.iter().max().filter(|_| tokens.len() >= MAJORITY)
                    {
                        let agree = tokens.iter().filter(|token| **token == greatest).count();
                        next.push(match agree >= MAJORITY || rule == WriteBack::Nowhere {
                            true => self.hold(c, greatest)?,
                            false => self.with(c, Phase::Writing(greatest)),
                        });
                    }
                }
                Phase::Writing(token) => {
                    let written = client
                        .sent
                        .iter()
                        .filter(|sent| matches!(sent, Sent::Written))
                        .count();
                    // A node that answered the greatest token knows it already.
                    let knew = client
                        .sent
                        .iter()
                        .filter(|sent| **sent == Sent::Granted(token))
                        .count();
                    if written + knew >= MAJORITY {
                        next.push(self.hold(c, token)?);
                    }
                }
                Phase::Holding(_) | Phase::Over => {}
            }
            if client.phase != Phase::Over {
                next.push(self.with(c, Phase::Over));
            }
        }
        Ok(next)
    }

    /// Delivers the next request of this client to this node. Once the client is over, the node
    /// forgets it.
    fn deliver(&self, c: usize, n: usize, proposal: u8, rule: WriteBack) -> Option<World> {
        let mut world = *self;
        let sent = &mut world.clients[c].sent[n];
        let phase = self.clients[c].phase;
        let mine = self.holder[n] == Some(c as u8);
        match (*sent, phase) {
            // A claim may also arrive after its client has decided. A lost claim is one whose
            // release arrives first.
            (Sent::Claim, Phase::Asking | Phase::Writing(_) | Phase::Holding(_))
                if self.holder[n].is_none() =>
            {
                world.last[n] = (self.last[n] + 1).max(proposal);
                world.holder[n] = Some(c as u8);
                *sent = Sent::Granted(world.last[n]);
            }
            (Sent::Claim, Phase::Asking | Phase::Writing(_) | Phase::Holding(_)) => {
                *sent = Sent::Refused;
            }
            (Sent::Granted(known), Phase::Writing(token)) if known != token => {
                *sent = if mine {
                    Sent::Written
                } else {
                    Sent::NotWritten
                };
                world.write(n, token, mine, rule, c);
            }
            (Sent::Refused, Phase::Writing(token)) if rule == WriteBack::Anywhere => {
                world.write(n, token, false, rule, c);
            }
            (Sent::Released, _) => return None,
            (_, Phase::Over) => {
                *sent = Sent::Released;
                if mine {
                    world.holder[n] = None;
                }
            }
            _ => return None,
        }
        Some(world)
    }

    fn write(&mut self, n: usize, token: u8, mine: bool, rule: WriteBack, c: usize) {
        if mine || rule == WriteBack::Anywhere {
            self.last[n] = self.last[n].max(token);
            self.clients[c].sent[n] = Sent::Written;
        }
    }

    fn hold(&self, c: usize, token: u8) -> Result<World, Fault> {
        if matches!(self.clients[1 - c].phase, Phase::Holding(_)) {
            return Err(Fault::TwoHold);
        }
        if token <= self.greatest {
            return Err(Fault::TokenFell);
        }
        Ok(World {
            greatest: token,
            ..self.with(c, Phase::Holding(token))
        })
    }

    fn with(&self, c: usize, phase: Phase) -> World {
        let mut world = *self;
        world.clients[c].phase = phase;
        world
    }
}

/// Searches every run from every start. Returns the number of worlds, or the fault.
fn search(rule: WriteBack) -> Result<usize, Fault> {
    let mut worlds = 0;
    // Nodes are alike, so it only matters how many of them have seen a greater token.
    for ahead in 0..=NODES {
        let last = [0, 1, 2].map(|n| if n < ahead { 5 } else { 0 });
        for proposals in [[0, 0], [9, 4], [4, 9]] {
            let mut seen = HashSet::from([World::start(last)]);
            let mut open: Vec<World> = seen.iter().copied().collect();
            while let Some(world) = open.pop() {
                open.extend(
                    world
                        .next(proposals, rule)?
                        .into_iter()
                        .filter(|next| seen.insert(*next)),
                );
            }
            worlds += seen.len();
        }
    }
    Ok(worlds)
}

#[test]
fn written_back_where_it_is_held_every_later_token_is_greater() {
    let worlds = search(WriteBack::WhereHeld).unwrap();
    println!("{worlds} worlds");
    assert!(worlds > 100_000, "the model has shrunk to {worlds} worlds");
}

#[test]
fn without_that_rule_tokens_fall() {
    assert_eq!(search(WriteBack::Nowhere), Err(Fault::TokenFell));
    assert_eq!(search(WriteBack::Anywhere), Err(Fault::TokenFell));
}

//! Random walks of clients of all stages over the real code, one request at a time: never two guards, never a token that falls,
//! whatever is lost, late or dropped; and afterwards nothing is left and nobody is stuck.
//!
//! Core is in the walk as a few lines: a guard counts from before its request, a lost one does not come back, and what was begun is
//! withdrawn.

mod client;

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;

use self::client::{Client, Gate, Out};
use crate::support::{Plan, TTL, Wire, drive};
use leasehold_bridge::Bridge;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, VirtualClock, WaitPolicy};
use leasehold_memory::Memory;

/// Which of the two stores numbers places.
#[derive(Clone, Copy, Debug)]
enum Places {
    None,
    InOld,
    InNew,
}

struct World {
    seed: u64,
    places: Places,
    random: fastrand::Rng,
    time: VirtualClock,
    plan: Plan,
    old: Wire,
    new: Wire,
    gate: Gate,
}

impl World {
    fn new(seed: u64, places: Places) -> World {
        let (memory, time) = Memory::with_virtual_time();
        let plan = Plan::default();
        let (mut old, mut new) = (
            Wire::to("old", &memory, &plan).slow(),
            Wire::to("new", &memory.another_store(), &plan).slow(),
        );
        match places {
            Places::None => {}
            Places::InOld => old = old.numbering_places(),
            Places::InNew => new = new.numbering_places(),
        }
        let mut random = fastrand::Rng::with_seed(seed);
        // Leases of different lengths.
        match random.u32(0..4) {
            0 => old = old.granting(3),
            1 => new = new.granting(3),
            _ => {}
        }
        World {
            seed,
            places,
            random,
            time,
            plan,
            old,
            new,
            gate: Gate {
                seed,
                ..Gate::default()
            },
        }
    }

    fn bridge(&self) -> Client {
        let wires = vec![self.old.another(), self.new.another()];
        let bridge = Bridge::new(wires[0].clone(), wires[1].clone()).unwrap();
        Client::new("bridge", Arc::new(bridge), wires)
    }

    fn alone(&self, who: &'static str, wire: &Wire) -> Client {
        let wire = wire.another();
        Client::new(who, Arc::new(wire.clone()), vec![wire])
    }

    async fn evict(&mut self) {
        let operator = self.bridge();
        let queue = drive(operator.backend.inspect(&"a".into())).await;
        let Some(Ok(queue)) = queue else { return };
        if let Some(token) = queue.holders.first().and_then(|holder| holder.token) {
            drive(operator.backend.evict(&"a".into(), token)).await;
            self.gate.evicted(token);
        }
    }

    /// Lets these clients go on for so many steps, and then leaves nothing of them.
    async fn phase(&mut self, mut clients: Vec<Client>, steps: usize) {
        let evicts = matches!(self.places, Places::None);
        for client in &mut clients {
            client.keeps = evicts;
        }
        let clock = self.time.clock();
        self.plan.random(self.random.u64(..), 60);
        for step in 0..steps {
            let random = &mut self.random;
            let n = random.usize(0..clients.len());
            match random.u32(0..200) {
                0..7 => self.time.advance(TTL / random.u32(2..12)),
                7 => self.time.advance(TTL * 19 / 20),
                8..14 => {
                    for wire in clients[n].wires.clone() {
                        wire.deliver().await;
                    }
                }
                // A crash: nothing of it is withdrawn.
                14 => clients[n].forget(),
                // A pause: it goes on believing what it has.
                15..18 => clients[n].sleeps_until = step + random.usize(20..120),
                // Its caller leaves: what was sent may still arrive.
                18..21 => {
                    if let Some(Out::Claim(..) | Out::Release(_)) = clients[n].out {
                        clients[n].out = None;
                    }
                }
                // An operator ends whatever is held, through a bridge.
                21..24 if evicts => self.evict().await,
                _ if clients[n].sleeps_until > step => {}
                _ => {
                    if clients[n].out.is_none() {
                        clients[n].begin(random, &clock);
                    }
                    clients[n].step(clock.now(), &mut self.gate);
                }
            }
            clients.iter_mut().for_each(Client::hear);
            let now = clock.now();
            let holders: Vec<&str> = clients
                .iter()
                .filter(|client| client.holds(now))
                .map(|client| client.who)
                .collect();
            assert!(
                holders.len() <= 1,
                "seed {}, step {step}: {holders:?}",
                self.seed
            );
        }
        self.plan.calm();
        for client in clients {
            for wire in &client.wires {
                wire.deliver().await;
            }
        }
        self.time.advance(TTL * 4);
        assert_eq!(
            (self.old.memory.entries(), self.new.memory.entries()),
            (0, 0),
            "seed {}: left for good",
            self.seed
        );
        // Nobody is stuck: whoever comes now holds at once.
        let bridge = self.bridge();
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, TTL, "after");
        let Some(Ok(Claimed::Granted(grant))) = drive(bridge.backend.claim(&claim)).await else {
            panic!("seed {}: nobody can hold", self.seed)
        };
        assert!(grant.token.get() > self.gate.most);
        self.gate.most = grant.token.get();
        drive(bridge.backend.release(&claim, None))
            .await
            .unwrap()
            .unwrap();
    }
}

/// From old to new and back, by deploys and seals as an operator does them.
async fn walk(seed: u64, places: Places) -> Gate {
    let mut world = World::new(seed, places);
    let steps = 600;
    let first = vec![
        world.alone("stage 1", &world.old),
        world.bridge(),
        world.bridge(),
    ];
    world.phase(first, steps).await;
    let mark = drive(world.old.mark()).await.unwrap().unwrap();
    drive(world.new.raise(mark)).await.unwrap().unwrap();
    let second = vec![
        world.bridge(),
        world.alone("stage 3", &world.new),
        world.bridge(),
    ];
    world.phase(second, steps).await;
    let mark = drive(world.new.mark()).await.unwrap().unwrap();
    drive(world.old.raise(mark)).await.unwrap().unwrap();
    let back = vec![
        world.bridge(),
        world.alone("stage 1", &world.old),
        world.alone("stage 1", &world.old),
    ];
    world.phase(back, steps).await;
    world.gate
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("LEASEHOLD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        Some(seed) => seed..seed + 1,
        None => {
            0..std::env::var("LEASEHOLD_WALKS")
                .ok()
                .and_then(|n| n.parse().ok())
                .unwrap_or(150)
        }
    }
}

fn walks(places: Places) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let gates: Vec<Gate> = seeds()
        .map(|seed| runtime.block_on(walk(seed, places)))
        .collect();
    let sum = |of: fn(&Gate) -> usize| gates.iter().map(of).sum::<usize>();
    let grants = sum(|gate| gate.grants);
    let walks = seeds().count();
    assert!(
        grants > walks * 5,
        "{grants} grants in {walks} walks prove little"
    );
    if matches!(places, Places::None) {
        let [ended, evicted] = [sum(|gate| gate.ended[0]), sum(|gate| gate.ended[1])];
        assert!(
            walks == 1 || ended > walks / 2 && evicted > 0,
            "{ended} ends of a min_hold and {evicted} evictions within one in {walks} walks prove little"
        );
    }
}

#[test]
fn over_stores_that_number_holds() {
    walks(Places::None);
}

#[test]
fn to_a_store_that_numbers_places() {
    walks(Places::InNew);
}

#[test]
fn from_a_store_that_numbers_places() {
    walks(Places::InOld);
}

//! A fast hash for keys that this crate makes itself.
//!
//! The hash of the standard library withstands keys that an attacker chooses. Ids of claims and
//! numbers of runtimes are not chosen by anyone: ids are random, the others are counted. The order
//! of a standard map also differs in each process.

use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys this crate makes itself.
pub type OwnMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<OwnKey>>;
/// A set whose keys this crate makes itself.
pub(crate) type OwnSet<K> = std::collections::HashSet<K, BuildHasherDefault<OwnKey>>;

/// The hash of such keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnKey(u64);

impl Hasher for OwnKey {
    fn finish(&self) -> u64 {
        // The table uses the lowest and the highest bits of a hash, but the best bits of a product
        // are in its middle.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        // An odd constant spreads numbers that follow one another over all bits.
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, n: u128) {
        self.write_u64(n as u64 ^ (n >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table uses the lowest bits of a hash: numbers with equal lowest bits, such as every
    /// 1024th, are spread too.
    #[test]
    fn every_stride_is_spread_over_the_lowest_bits() {
        const BUCKETS: u64 = 1024;
        for stride in (0..32).map(|power| 1 << power) {
            let hash = |n: u64| {
                let mut hasher = OwnKey::default();
                hasher.write_u64(n * stride);
                hasher.finish() % BUCKETS
            };
            let used: OwnSet<u64> = (0..BUCKETS).map(hash).collect();
            // Random numbers would use five in eight.
            assert!(
                used.len() as u64 > BUCKETS / 4,
                "{} of {BUCKETS} with a stride of {stride}",
                used.len()
            );
        }
    }

    /// Both halves of a claim's id count, and each word of several.
    #[test]
    fn keys_that_differ_in_any_part_differ() {
        let hash = |write: &dyn Fn(&mut OwnKey)| {
            let mut hasher = OwnKey::default();
            write(&mut hasher);
            hasher.finish()
        };
        let ids: OwnSet<u64> = [0, 1, 2, 3 << 64, 5 << 64]
            .iter()
            .map(|id| hash(&|h| h.write_u128(*id)))
            .collect();
        assert_eq!(ids.len(), 5);
        let texts: OwnSet<u64> = ["", "a", "b", "ab", "ba"]
            .iter()
            .map(|text| hash(&|h| h.write(text.as_bytes())))
            .collect();
        assert_eq!(texts.len(), 5);
        let pairs = (0..32).flat_map(|a| (0..32).map(move |b| (a, b)));
        let pairs: OwnSet<u64> = pairs
            .map(|(a, b)| hash(&|h| [a, b].iter().for_each(|n| h.write_u64(*n))))
            .collect();
        assert_eq!(pairs.len(), 32 * 32);
    }
}

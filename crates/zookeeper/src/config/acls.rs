//! The access rights of the store's nodes.

use leasehold_core::{Error, ErrorKind, Result};
use zookeeper_client::{Acl, Acls, CreateMode, CreateOptions, Permission};

use crate::config::Config;

impl Config {
    /// Creates all nodes from the root on for the credentials of the connection alone (ACL *auth:
    /// all*): no other client can remove or even see a lock. Without it every client that reaches
    /// ZooKeeper can, as with Curator's and kazoo's defaults. All users of a lock then need the
    /// same credentials. Existing nodes keep their access rights. Under a root that is open to
    /// others, these see the locks' names, and can create a lock's node before its first user does,
    /// and control it.
    #[must_use]
    pub fn private(self) -> Config {
        self.acls(&Acls::creator_all())
    }

    /// Creates all nodes from the root on with these access rights, such as those of `sasl:me`;
    /// nodes above the root keep their own. At least one user needs all of `READ`, `WRITE`,
    /// `CREATE` and `DELETE`, and so does everyone who uses the locks: a user who may create and
    /// not delete is refused at each release, and holds until its session ends. The giver of the
    /// rights must see to that, because this store cannot know which users they mean.
    ///
    /// ```
    /// use leasehold_zookeeper::Config;
    /// use leasehold_zookeeper::zookeeper_client::{Acl, AuthId, Permission};
    ///
    /// let ours = Acl::new(Permission::ALL, AuthId::new("sasl", "me"));
    /// let all_may_look = Acl::new(Permission::READ, AuthId::anyone());
    /// let config = Config::new("zk1,zk2,zk3").acls(&[ours, all_may_look]);
    /// ```
    #[must_use]
    pub fn acls(mut self, acls: &[Acl]) -> Config {
        self.acls = acls.to_vec();
        self
    }

    /// Fails if no user can use a lock from its beginning to its end.
    pub(super) fn check_acls(&self) -> Result<()> {
        let used = Permission::READ | Permission::WRITE | Permission::CREATE | Permission::DELETE;
        let of = |who: &Acl| {
            let theirs = self
                .acls
                .iter()
                .filter(|acl| acl.auth_id() == who.auth_id());
            theirs.fold(Permission::NONE, |all, acl| all | acl.permission())
        };
        let what = "the ACLs let nobody READ, WRITE, CREATE and DELETE: no lock could be taken and released";
        if self.acls.iter().any(|acl| of(acl).has(used)) {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Invalid, what))
        }
    }

    /// The options to create nodes of this kind with.
    pub(crate) fn create_options(&self, mode: CreateMode) -> CreateOptions<'_> {
        mode.with_acls(Acls::new(&self.acls))
    }
}

#[cfg(test)]
mod tests {
    use zookeeper_client::AuthId;

    use super::*;

    #[test]
    fn somebody_may_take_a_lock_and_release_it() {
        let me = |permission| Acl::new(permission, AuthId::new("sasl", "me"));
        let [most, rest] = [
            Permission::READ | Permission::WRITE | Permission::CREATE,
            Permission::DELETE,
        ];
        let checked = |acls: &[Acl]| Config::new("a").acls(acls).checked();
        for good in [
            &[me(Permission::ALL)][..],
            &[me(most), me(rest)],
            &[me(most), me(rest | most)],
            &[me(rest | most)],
        ] {
            assert_eq!(checked(good).unwrap().acls, good);
        }
        let other = Acl::new(rest, AuthId::anyone());
        for bad in [
            &[][..],
            &[me(most)],
            &[me(most), other],
            &[me(Permission::NONE)],
        ] {
            let e = checked(bad).unwrap_err();
            assert!(
                e.kind() == ErrorKind::Invalid && e.to_string().contains("DELETE"),
                "{e}"
            );
        }
    }

    #[test]
    fn each_of_four_permissions_is_needed() {
        let four = [
            Permission::READ,
            Permission::WRITE,
            Permission::CREATE,
            Permission::DELETE,
        ];
        let acl = |permission| Acl::new(permission, AuthId::anyone());
        let all = four
            .into_iter()
            .fold(Permission::NONE, |all, one| all | one);
        Config::new("a").acls(&[acl(all)]).checked().unwrap();
        for lacking in 0..4 {
            let others = four.iter().enumerate().filter(|(nth, _)| *nth != lacking);
            let others = others.fold(Permission::ADMIN, |all, (_, one)| all | *one);
            let e = Config::new("a").acls(&[acl(others)]).checked().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{others:?}");
        }
    }
}

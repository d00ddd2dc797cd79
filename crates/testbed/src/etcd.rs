//! Private etcd servers.

use std::{collections::BTreeMap, fs, net::SocketAddr, ops::Deref, sync::OnceLock, time::Duration};

use async_trait::async_trait;

use crate::{
    certificates::TlsPort,
    error::{Error, Result},
    find::Program,
    http, ports,
    process::Manner,
    server::{self, Launch, Probe, Server},
};

/// The whole key space, for the JSON gateway: from the key NUL to the end, in base64.
const ALL_KEYS: &str = r#"{"key":"AA==","range_end":"AA==","count_only":true}"#;

/// The key that signs the tokens of users: all members of a cluster have to know it.
const JWT_KEY: &str = "no secret of anybody's";

/// The options of a private etcd. The default elects a leader within a fraction of a second.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The interval at which a leader shows that it is alive.
    pub heartbeat: Duration,
    /// The time that members wait for a leader before they elect another; at least five heartbeats.
    pub election: Duration,
    /// More arguments for `etcd`, such as `["--quota-backend-bytes=16000000"]`.
    pub extra: Vec<String>,
    /// The TLS port, beside the plain one. The members of a cluster show copies of this
    /// certificate, each at a port of its own: [`Etcd::tls_addr`]. The files of a copy are named
    /// `server-<port>`, so another certificate can be [issued](crate::Certificates::issue) into
    /// them.
    pub tls: Option<TlsPort>,
    /// If set, the tokens of users are signed (JWT), and each is valid for this time.
    pub jwt: Option<Duration>,
    /// The members of a cluster talk to each other through proxies, so that one can be isolated:
    /// [`EtcdCluster::isolate`](crate::EtcdCluster::isolate). A single server ignores this.
    pub peer_proxies: bool,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(20),
            election: Duration::from_millis(200),
            extra: Vec::new(),
            tls: None,
            jwt: None,
            peer_proxies: false,
        }
    }
}

/// A private etcd server; see [`Server`] for the controls of its process.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    tls: Option<String>,
    /// The password with which the testbed asks as `root`, once there are users.
    pub(crate) root: OnceLock<String>,
}

impl Etcd {
    /// Starts a server of one member and waits until it has a leader.
    pub async fn start() -> Result<Self> {
        Self::start_with(&EtcdOptions::default()).await
    }

    /// Starts a server of one member and waits until it has a leader.
    pub async fn start_with(options: &EtcdOptions) -> Result<Self> {
        server::started(|| async {
            let plan = [Member {
                tls: options.tls.clone(),
                ..Member::plan()?
            }];
            let etcd = plan[0].launch(&plan, options)?;
            etcd.until_ready().await.map(|()| etcd)
        })
        .await
    }

    /// The URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// The address to which clients connect over TLS, if the server has TLS: `host:port`.
    #[must_use]
    pub fn tls_addr(&self) -> Option<&str> {
        self.tls.as_deref()
    }

    /// Sends a JSON document to the server's gateway, such as `{"key":"Zm9v"}` to `/v3/kv/range`, and returns the answer.
    pub async fn post(&self, path: &str, json: &str) -> Result<String> {
        let token = match self.root.get() {
            Some(password) => Some(self.token_of_root(password).await?),
            None => None,
        };
        http::post(self.addr(), path, json, token.as_deref()).await
    }

    /// The number of calls of each gRPC method that the server finished, whatever their outcome, by
    /// method: `Txn`, `LeaseGrant`, and so on. A stream counts once, when it ends. The gateway
    /// through which this testbed asks makes such calls, too.
    pub async fn handled(&self) -> Result<BTreeMap<String, u64>> {
        let mut calls = BTreeMap::new();
        for line in http::get(self.addr(), "/metrics").await?.lines() {
            let counted = line
                .strip_prefix("grpc_server_handled_total{")
                .and_then(|rest| rest.rsplit_once(' '));
            let Some((labels, count)) = counted else {
                continue;
            };
            let method = labels
                .split_once("grpc_method=\"")
                .and_then(|(_, rest)| rest.split('"').next());
            *calls
                .entry(method.unwrap_or_default().to_owned())
                .or_default() += count.parse::<f64>().unwrap_or_default() as u64;
        }
        Ok(calls)
    }

    /// The number of keys.
    pub async fn key_count(&self) -> Result<u64> {
        let answer = self.post("/v3/kv/range", ALL_KEYS).await?;
        // The gateway omits a zero.
        Ok(json_number(&answer, "count").unwrap_or_default())
    }

    /// The number of leases.
    pub async fn lease_count(&self) -> Result<usize> {
        let answer = self.post("/v3/lease/leases", "{}").await?;
        Ok(answer.matches("\"ID\"").count())
    }

    /// Starts an `etcd grpc-proxy` in front of this server, and waits until it serves.
    pub async fn grpc_proxy(&self) -> Result<Server> {
        server::started(|| async {
            let [port] = ports::free()?;
            let folder = server::folder("etcd-proxy")?;
            let data = folder.path().join("data");
            let args = [
                "grpc-proxy".to_owned(),
                "start".into(),
                format!("--endpoints={}", self.url()),
                format!("--listen-addr=127.0.0.1:{port}"),
            ];
            let launch = Launch {
                name: "etcd grpc-proxy",
                program: Program::Etcd.find()?,
                args: args.into(),
                port,
                folder,
                data,
                seed: Vec::new(),
                probe: Box::new(IsProxy),
                manner: Manner::default(),
            };
            let proxy = Server::launch(launch)?;
            proxy.until_ready().await.map(|()| proxy)
        })
        .await
    }

    /// The member's id in its cluster, in the form in which raft's requests are signed with it.
    pub(crate) async fn signature(&self) -> Result<String> {
        let status = self.post("/v3/maintenance/status", "{}").await?;
        let id = json_number(&status, "member_id")
            .ok_or_else(|| Error::answer("etcd status", status))?;
        Ok(format!("{id:x}"))
    }
}

impl Deref for Etcd {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// The facts about a member that the others have to know before the first of them starts.
#[derive(Debug)]
pub(crate) struct Member {
    name: String,
    client: u16,
    /// The member's TLS port.
    pub(crate) tls: Option<TlsPort>,
    /// The address at which it listens for the other members.
    pub(crate) peer: SocketAddr,
    /// The address at which the other members find it.
    pub(crate) advertised: SocketAddr,
}

impl Member {
    pub(crate) fn plan() -> Result<Self> {
        let [client, peer] = ports::free()?;
        // The name is unique, so an answer with this name comes from this member.
        let name = format!("m{:016x}", fastrand::u64(..));
        let peer = ports::addr(peer);
        Ok(Self {
            name,
            client,
            tls: None,
            peer,
            advertised: peer,
        })
    }

    pub(crate) fn launch(&self, members: &[Self], options: &EtcdOptions) -> Result<Etcd> {
        let folder = server::folder("etcd")?;
        let data = folder.path().join("data");
        let client_url = format!("http://127.0.0.1:{}", self.client);
        let cluster: Vec<String> = members
            .iter()
            .map(|member| format!("{}=http://{}", member.name, member.advertised))
            .collect();
        let flags = [
            ("--name", self.name.clone()),
            ("--data-dir", data.join("etcd").display().to_string()),
            (
                "--listen-client-urls",
                self.tls.iter().fold(client_url.clone(), |urls, tls| {
                    format!("{urls},https://{}", tls.addr())
                }),
            ),
            ("--advertise-client-urls", client_url),
            ("--listen-peer-urls", format!("http://{}", self.peer)),
            (
                "--initial-advertise-peer-urls",
                format!("http://{}", self.advertised),
            ),
            ("--initial-cluster", cluster.join(",")),
            ("--initial-cluster-state", "new".into()),
            (
                "--heartbeat-interval",
                options.heartbeat.as_millis().to_string(),
            ),
            (
                "--election-timeout",
                options.election.as_millis().to_string(),
            ),
            // Hashing a password is cheap, so that a busy machine does not look as if it gave no
            // answer.
            ("--bcrypt-cost", "4".into()),
            ("--logger", "zap".into()),
            ("--log-level", "error".into()),
        ];
        let mut args: Vec<String> = flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        args.extend(self.tls.iter().flat_map(TlsPort::etcd));
        if let Some(ttl) = options.jwt {
            let key = folder.path().join("jwt.key");
            fs::write(&key, JWT_KEY).map_err(Error::io("writing a key"))?;
            let key = key.display();
            let ttl = ttl.as_millis();
            args.push(format!(
                "--auth-token=jwt,priv-key={key},sign-method=HS256,ttl={ttl}ms"
            ));
        }
        args.extend(options.extra.iter().cloned());
        let probe = Box::new(HasLeader {
            name: self.name.clone(),
        });
        let program = Program::Etcd.find()?;
        let port = self.client;
        let launch = Launch {
            name: "etcd",
            program,
            args,
            port,
            folder,
            data,
            seed: Vec::new(),
            probe,
            manner: Manner::default(),
        };
        let tls = self.tls.as_ref().map(TlsPort::addr);
        Ok(Etcd {
            server: Server::launch(launch)?,
            tls,
            root: OnceLock::new(),
        })
    }
}

/// Ready once the server has a leader and is the member that was started.
#[derive(Debug)]
struct HasLeader {
    name: String,
}

#[async_trait]
impl Probe for HasLeader {
    async fn ask(&self, addr: &str, _pid: u32) -> Result<()> {
        let health = http::get(addr, "/health").await?;
        if !health.contains(r#""health":"true""#) {
            return Err(Error::answer("GET /health", health));
        }
        let members = http::post(addr, "/v3/cluster/member/list", "{}", None).await?;
        if members.contains(&self.name) {
            Ok(())
        } else {
            Err(Error::answer("etcd member list", members))
        }
    }

    async fn leads(&self, addr: &str) -> Result<bool> {
        Ok(http::get(addr, "/metrics")
            .await?
            .lines()
            .any(|line| line == "etcd_server_is_leader 1"))
    }
}

/// Ready once the proxy answers for the server behind it.
#[derive(Debug)]
struct IsProxy;

#[async_trait]
impl Probe for IsProxy {
    async fn ask(&self, addr: &str, _pid: u32) -> Result<()> {
        let health = http::get(addr, "/health").await?;
        if health.contains(r#""health":"true""#) {
            Ok(())
        } else {
            Err(Error::answer("GET /health", health))
        }
    }
}

/// A number in the gateway's JSON, which writes 64-bit numbers as strings.
pub(crate) fn json_number(json: &str, field: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{field}\":"))?;
    let digits = rest.trim_start_matches('"');
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_with_and_without_quotes() {
        assert_eq!(
            json_number(r#"{"header":{},"count":"17"}"#, "count"),
            Some(17)
        );
        assert_eq!(json_number(r#"{"count":3}"#, "count"), Some(3));
        assert_eq!(json_number(r#"{"header":{}}"#, "count"), None);
    }
}

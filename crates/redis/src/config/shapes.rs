//! The URLs that providers and frameworks give, with made-up hosts, and what becomes of each: the
//! page of the store has the same list.

use leasehold_net::Verified;
use leasehold_testbed::reasons::{Shape, urls_are_on_page};

use super::{Config, Protocol};

const SHAPES: [Shape; 41] = [
    (
        "Upstash",
        "rediss://default:pw@eu1-apt-fox-12345.upstash.io:6379",
        "eu1-apt-fox-12345.upstash.io:6379, TLS, verified",
    ),
    (
        "ElastiCache",
        "redis://app-1.abc.ng.0001.euw1.cache.amazonaws.com:6379",
        "app-1.abc.ng.0001.euw1.cache.amazonaws.com:6379",
    ),
    (
        "ElastiCache, TLS",
        "rediss://app:pw@master.app-1.abc.euw1.cache.amazonaws.com:6379/0",
        "master.app-1.abc.euw1.cache.amazonaws.com:6379, TLS, verified",
    ),
    (
        "ElastiCache, Cluster",
        "rediss+cluster://clustercfg.app-1.abc.euw1.cache.amazonaws.com:6379",
        "Cluster by clustercfg.app-1.abc.euw1.cache.amazonaws.com:6379, TLS, verified",
    ),
    (
        "ElastiCache Serverless",
        "rediss://app-abc.serverless.euw1.cache.amazonaws.com:6379",
        "app-abc.serverless.euw1.cache.amazonaws.com:6379, TLS, verified",
    ),
    (
        "MemoryDB",
        "rediss+cluster://app:pw@clustercfg.app.abc.memorydb.eu-west-1.amazonaws.com:6379",
        "Cluster by clustercfg.app.abc.memorydb.eu-west-1.amazonaws.com:6379, TLS, verified",
    ),
    (
        "Redis Cloud",
        "redis://default:pw@redis-12345.c1.eu-west-1-2.ec2.redns.redis-cloud.com:12345",
        "redis-12345.c1.eu-west-1-2.ec2.redns.redis-cloud.com:12345",
    ),
    (
        "Heroku",
        "rediss://:pw@ec2-1-2-3-4.compute-1.amazonaws.com:12345",
        "ec2-1-2-3-4.compute-1.amazonaws.com:12345, TLS, verified",
    ),
    (
        "Heroku, self-signed",
        "rediss://:pw@ec2-1-2-3-4.compute-1.amazonaws.com:12345?ssl_cert_reqs=none",
        "ec2-1-2-3-4.compute-1.amazonaws.com:12345, TLS, not verified (warning)",
    ),
    ("Render, internal", "redis://red-abc:6379", "red-abc:6379"),
    (
        "Render, external",
        "rediss://red-abc:pw@oregon-keyvalue.render.com:6379",
        "oregon-keyvalue.render.com:6379, TLS, verified",
    ),
    (
        "Railway",
        "redis://default:pw@redis.railway.internal:6379?family=0",
        "redis.railway.internal:6379",
    ),
    (
        "Fly",
        "redis://default:pw@fly-app-redis.upstash.io:6379",
        "fly-app-redis.upstash.io:6379",
    ),
    (
        "DigitalOcean Valkey",
        "rediss://default:pw@db-valkey-fra1-1.b.db.ondigitalocean.com:25061",
        "db-valkey-fra1-1.b.db.ondigitalocean.com:25061, TLS, verified",
    ),
    (
        "Aiven Valkey",
        "valkeys://default:pw@valkey-1-app.aivencloud.com:12345",
        "valkey-1-app.aivencloud.com:12345, TLS, verified",
    ),
    (
        "Azure Cache",
        "rediss://:pw%3D@app.redis.cache.windows.net:6380/0",
        "app.redis.cache.windows.net:6380, TLS, verified",
    ),
    (
        "Azure Managed Redis",
        "rediss://:pw%3D@app.westeurope.redis.azure.net:10000",
        "app.westeurope.redis.azure.net:10000, TLS, verified",
    ),
    (
        "Azure, for .NET",
        "app.redis.cache.windows.net:6380,password=pw,ssl=True",
        "Refused: the store's URL: it does not begin with redis://",
    ),
    (
        "Memorystore",
        "rediss://:pw@10.0.0.3:6378?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
        "10.0.0.3:6378, TLS, its CA verified",
    ),
    (
        "Memorystore, plain",
        "redis://10.0.0.3:6379",
        "10.0.0.3:6379",
    ),
    (
        "Dragonfly Cloud",
        "rediss://default:pw@abc123.dragonflydb.cloud:6385",
        "abc123.dragonflydb.cloud:6385, TLS, verified",
    ),
    ("KeyDB", "redis://:pw@keydb:6379/0", "keydb:6379"),
    (
        "redis-py",
        "REDIS://me:pw@localhost:6379/0?db=0&protocol=3",
        "localhost:6379",
    ),
    (
        "redis-py, socket",
        "unix:///run/redis/redis.sock?db=1",
        "/run/redis/redis.sock, database 1",
    ),
    (
        "redis-py, limits",
        "redis://localhost:6379/0?socket_timeout=5",
        "Refused: the store's URL: socket_timeout is not read here: write timeout=milliseconds",
    ),
    (
        "redis-rs, socket",
        "redis+unix:///run/redis/redis.sock?db=1&user=me&pass=pw",
        "/run/redis/redis.sock, database 1",
    ),
    (
        "Celery",
        "rediss://:pw@h:6380/1?ssl_cert_reqs=CERT_NONE",
        "h:6380, database 1, TLS, not verified (warning)",
    ),
    (
        "Celery, Sentinel",
        "sentinel://:pw@a:26379;sentinel://b:26379",
        "Refused: the store's URL: it does not begin with redis://",
    ),
    (
        "Celery, socket",
        "redis+socket:///run/redis/redis.sock?virtual_host=1",
        "/run/redis/redis.sock, database 1",
    ),
    (
        "Django",
        "redis://username:pw@127.0.0.1:6379/1",
        "127.0.0.1:6379, database 1",
    ),
    (
        "Sidekiq",
        "redis://localhost:6379/12",
        "localhost:6379, database 12",
    ),
    (
        "Rails cache",
        "rediss://:pw@h:6380/1?ssl_cert_reqs=required",
        "h:6380, database 1, TLS, verified",
    ),
    ("Valkey", "valkey://localhost:6379", "localhost:6379"),
    (
        "Sentinel",
        "redis+sentinel://:pw@a:26379,b,c/mymaster/1",
        "mymaster by a:26379,b:26379,c:26379, database 1",
    ),
    (
        "Spring, Lettuce",
        "redis-sentinel://:pw@a:26379,b:26379/1?sentinelMasterId=mymaster",
        "mymaster by a:26379,b:26379, database 1",
    ),
    (
        "Lettuce, old",
        "redis-sentinel://:pw@a:26379,b:26379/1#mymaster",
        "Refused: the store's URL: the name of the master is written ?sentinelMasterId=name",
    ),
    (
        "Lettuce, time-out",
        "redis://:pw@localhost:6379/0?timeout=10s",
        "Refused: the store's URL: timeout is in milliseconds, from 10 to 60000",
    ),
    (
        "asynq",
        "redis-sentinel://:pw@a:26379,b:26379/0?master=mymaster",
        "mymaster by a:26379,b:26379",
    ),
    (
        "ioredis",
        "redis://:pw@localhost:6379?family=6",
        "Refused: the store's URL: family is 0: addresses of both are used",
    ),
    (
        "RESP2",
        "redis://localhost:6379?protocol=2",
        "localhost:6379, RESP2",
    ),
    (
        "A user alone",
        "redis://default@localhost:6379",
        "Refused: the store's URL: a user without a password (a password alone is written :password@)",
    ),
];

/// What a URL means, or why it is refused.
fn meaning(url: &str) -> String {
    let config = match Config::from_url(url) {
        Ok(config) => config,
        Err(e) => return format!("Refused: {e}"),
    };
    let server = &config.server;
    let mut meaning = match (&server.sentinels, &config.cluster) {
        (Some(sentinels), _) => {
            let each = sentinels.each.iter().map(|each| each.addr().to_string());
            let each: Vec<String> = each.collect();
            format!("{} by {}", sentinels.master, each.join(","))
        }
        (None, Some(_)) => format!("Cluster by {}", server.info.addr()),
        (None, None) => server.info.addr().to_string(),
    };
    if server.info.redis_settings().db() != 0 {
        meaning += &format!(", database {}", server.info.redis_settings().db());
    }
    meaning += match server.tls.as_ref().map(leasehold_net::Tls::verified) {
        None => "",
        Some(Verified::Name) => ", TLS, verified",
        Some(Verified::Ca) => ", TLS, its CA verified",
        Some(Verified::Nothing) => ", TLS, not verified (warning)",
    };
    if server.protocol == Some(Protocol::Resp2) {
        meaning += ", RESP2";
    }
    meaning
}

#[test]
fn each_shape_means_what_the_page_says() {
    urls_are_on_page("redis", &SHAPES, meaning);
}

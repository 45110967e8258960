//! What a request has to look like before anybody asks who sent it: its target, `Host`, `Origin`,
//! content type and `Authorization`. Decisions only.

use hyper::HeaderMap;
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use std::net::{IpAddr, SocketAddr};

/// The names under which this endpoint may be addressed, and the pages that may call it.
#[derive(Debug)]
pub(crate) struct Doors {
    bound: SocketAddr,
    hosts: Vec<String>,
    origins: [String; 3],
}

/// Why a request is refused with 403.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// The request line carries a whole URL or an authority: it was meant for a proxy.
    Target,
    /// `Host` is missing, there is more than one, or it names somebody else.
    Host,
    /// `Origin` is not a page of this endpoint: a browser sends it for a web page.
    Origin,
}

/// What a request says about its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing.
    None,
    /// The bearer token.
    Token(String),
    /// `Authorization` that is no bearer token, or more than one.
    Unusable,
}

const LOOPBACK_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];
const HTTP_PORT: u16 = 80;

impl Doors {
    /// The doors of an endpoint that listens on `bound`.
    pub(crate) fn new(bound: SocketAddr) -> Self {
        let names = LOOPBACK_NAMES.map(str::to_owned);
        let configured = [literal(bound.ip())];
        let hosts =
            names.iter().chain(&configured).flat_map(|name| authorities(name, bound.port())).collect();
        let origins = names.map(|name| format!("http://{}", authority(&name, bound.port())));
        Self { bound, hosts, origins }
    }

    /// Whether the request is meant for this endpoint. `local` is the endpoint's end of the connection.
    pub(crate) fn check(&self, request: &Parts, local: SocketAddr) -> Result<(), Foreign> {
        if request.uri.scheme().is_some() || request.uri.authority().is_some() {
            return Err(Foreign::Target);
        }
        match only(&request.headers, &HOST) {
            Some(Some(host)) if self.is_ours(host, local) => {}
            _ => return Err(Foreign::Host),
        }
        match only(&request.headers, &ORIGIN) {
            Some(None) => Ok(()),
            Some(Some(origin)) if self.origins.iter().any(|allowed| allowed == origin) => Ok(()),
            _ => Err(Foreign::Origin),
        }
    }

    fn is_ours(&self, host: &str, local: SocketAddr) -> bool {
        let named = |allowed: &String| allowed.eq_ignore_ascii_case(host);
        // Bound to every address, it is reached by whichever of them: a literal address cannot be rebound.
        self.hosts.iter().any(named)
            || (self.bound.ip().is_unspecified()
                && authorities(&literal(local.ip()), self.bound.port()).iter().any(named))
    }
}

/// Whether the body claims to be JSON, and nothing else does: a web page cannot send that unasked.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Some(value)) = only(headers, &CONTENT_TYPE) else { return false };
    let essence = value.split_once(';').map_or(value, |(essence, _)| essence);
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// Whether the body is as it is: not compressed, and in at most one chunked coding, which is all that is undone here. Whatever
/// stands between a client and this endpoint could read another encoding differently.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    let only_says = |name, word: &str| {
        only(headers, name)
            .is_some_and(|value| value.is_none_or(|value| value.trim().eq_ignore_ascii_case(word)))
    };
    only_says(&CONTENT_ENCODING, "identity") && only_says(&TRANSFER_ENCODING, "chunked")
}

/// The name of a header of MCP that is there more than once, if there is such a one: which of them would hold is anybody's guess.
pub(crate) fn repeated(headers: &HeaderMap) -> Option<&HeaderName> {
    let counts = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
    headers.keys().filter(|name| name.as_str().starts_with("mcp-")).find(counts)
}

/// The bearer token of a request.
pub(crate) fn claim(headers: &HeaderMap) -> Claim {
    let value = match only(headers, &AUTHORIZATION) {
        Some(None) => return Claim::None,
        Some(Some(value)) => value,
        None => return Claim::Unusable,
    };
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
            Claim::Token(token.trim().to_owned())
        }
        _ => Claim::Unusable,
    }
}

/// The text of a header that may appear once: `Some(None)` when it is not there, `None` when it is there
/// more than once or is no text.
#[expect(clippy::option_option, reason = "the three cases are matched on at once, nothing keeps them")]
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Some(None),
        (Some(value), None) => HeaderValue::to_str(value).ok().map(Some),
        (Some(_), Some(_)) => None,
    }
}

fn literal(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// How a client that follows the standard writes a name and port: without the port if it is HTTP's own.
fn authority(name: &str, port: u16) -> String {
    if port == HTTP_PORT { name.to_owned() } else { format!("{name}:{port}") }
}

fn authorities(name: &str, port: u16) -> Vec<String> {
    let mut ways = vec![format!("{name}:{port}")];
    if port == HTTP_PORT {
        ways.push(name.to_owned());
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn check(bound: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), Foreign> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bound: SocketAddr = bound.parse().unwrap();
        let local = SocketAddr::new("192.0.2.7".parse().unwrap(), bound.port());
        Doors::new(bound).check(&request.body(()).unwrap().into_parts().0, local)
    }

    fn host(bound: &str, host: &str) -> Result<(), Foreign> {
        check(bound, "/mcp", &[("host", host)])
    }

    fn origin(origin: &str) -> Result<(), Foreign> {
        check("127.0.0.1:4310", "/mcp", &[("host", "localhost:4310"), ("origin", origin)])
    }

    #[test]
    fn loopback_names_and_the_configured_host_are_ours_with_the_port() {
        for name in ["127.0.0.1:4310", "localhost:4310", "LocalHost:4310", "[::1]:4310"] {
            assert_eq!(host("127.0.0.1:4310", name), Ok(()), "{name}");
        }
        assert_eq!(host("192.0.2.1:4310", "192.0.2.1:4310"), Ok(()));
        assert_eq!(host("[2001:db8::1]:4310", "[2001:db8::1]:4310"), Ok(()));
    }

    #[test]
    fn a_rebound_name_a_missing_port_and_another_port_are_foreign() {
        for name in ["evil.example:4310", "127.0.0.1", "localhost", "127.0.0.1:4311", "localhost.:4310", ""] {
            assert_eq!(host("127.0.0.1:4310", name), Err(Foreign::Host), "{name:?}");
        }
        assert_eq!(host("127.0.0.1:4310", "192.0.2.7:4310"), Err(Foreign::Host));
    }

    #[test]
    fn the_port_of_http_itself_may_be_left_out() {
        assert_eq!(host("127.0.0.1:80", "localhost"), Ok(()));
        assert_eq!(host("127.0.0.1:80", "localhost:80"), Ok(()));
    }

    #[test]
    fn bound_to_every_address_the_one_that_was_reached_is_ours() {
        assert_eq!(host("0.0.0.0:4310", "192.0.2.7:4310"), Ok(()));
        assert_eq!(host("0.0.0.0:4310", "192.0.2.8:4310"), Err(Foreign::Host));
        assert_eq!(host("0.0.0.0:4310", "evil.example:4310"), Err(Foreign::Host));
    }

    #[test]
    fn exactly_one_host_is_needed() {
        assert_eq!(check("127.0.0.1:4310", "/mcp", &[]), Err(Foreign::Host));
        let twice = [("host", "127.0.0.1:4310"), ("host", "127.0.0.1:4310")];
        assert_eq!(check("127.0.0.1:4310", "/mcp", &twice), Err(Foreign::Host));
    }

    #[test]
    fn a_target_for_a_proxy_is_foreign() {
        let host = [("host", "127.0.0.1:4310")];
        assert_eq!(check("127.0.0.1:4310", "http://127.0.0.1:4310/mcp", &host), Err(Foreign::Target));
    }

    #[test]
    fn only_pages_of_this_endpoint_may_call_it() {
        for ours in ["http://127.0.0.1:4310", "http://localhost:4310", "http://[::1]:4310"] {
            assert_eq!(origin(ours), Ok(()), "{ours}");
        }
        for foreign in [
            "http://localhost",
            "https://localhost:4310",
            "http://localhost:4311",
            "http://LOCALHOST:4310",
            "http://evil.example:4310",
            "null",
            "",
        ] {
            assert_eq!(origin(foreign), Err(Foreign::Origin), "{foreign:?}");
        }
        let twice = [
            ("host", "localhost:4310"),
            ("origin", "http://localhost:4310"),
            ("origin", "http://localhost:4310"),
        ];
        assert_eq!(check("127.0.0.1:4310", "/mcp", &twice), Err(Foreign::Origin));
    }

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn only_json_is_json() {
        for json in ["application/json", "Application/JSON; charset=utf-8"] {
            assert!(is_json(&headers("content-type", &[json])), "{json}");
        }
        for other in [&["text/plain"][..], &["application/jsonl"], &[], &["application/json", "text/plain"]] {
            assert!(!is_json(&headers("content-type", other)), "{other:?}");
        }
    }

    #[test]
    fn a_body_that_is_encoded_otherwise_than_in_chunks_is_not_plain() {
        assert!(is_plain(&HeaderMap::new()));
        assert!(is_plain(&headers("transfer-encoding", &["Chunked"])));
        assert!(is_plain(&headers("content-encoding", &["identity"])));
        for encoded in [&["gzip, chunked"][..], &["chunked", "chunked"], &["xchunked"], &["chunked, chunked"]]
        {
            assert!(!is_plain(&headers("transfer-encoding", encoded)), "{encoded:?}");
        }
        assert!(!is_plain(&headers("content-encoding", &["gzip"])));
    }

    #[test]
    fn a_header_of_mcp_may_be_there_once() {
        assert_eq!(repeated(&headers("mcp-protocol-version", &["2025-06-18"])), None);
        assert_eq!(repeated(&headers("accept", &["a", "b"])), None);
        assert_eq!(repeated(&headers("mcp-method", &["ping", "ping"])).unwrap(), "mcp-method");
    }

    #[test]
    fn a_claim_is_one_bearer_token() {
        let of = |values: &[&str]| claim(&headers("authorization", values));
        assert_eq!(of(&[]), Claim::None);
        assert_eq!(of(&["Bearer abc"]), Claim::Token("abc".into()));
        assert_eq!(of(&["bearer  abc "]), Claim::Token("abc".into()));
        for unusable in [&["Basic abc"][..], &["Bearer"], &["Bearer "], &["Bearer a", "Bearer a"], &[""]] {
            assert_eq!(of(unusable), Claim::Unusable, "{unusable:?}");
        }
    }
}

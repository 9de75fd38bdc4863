//! The flags of TLS, and what they mean for a run.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::{flags::OnOff, url::Url};
use crate::{
    data::{
        Error, Result,
        plan::{Target, Tls, TlsVersion},
    },
    sys::limit,
};

/// TLS of https:// URLs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Take any certificate; without it the server's must be good for its name and signed by an authority of the system's
    #[arg(short = 'k', long, conflicts_with = "cacert")]
    pub insecure: bool,
    /// PEM file of authorities that are trusted beside the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cacert: Option<PathBuf>,
    /// PEM file with a certificate (and those that signed it) to show to servers that ask for one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cert: Option<PathBuf>,
    /// PEM file with the key of --cert [default: the file of --cert]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "cert")]
    pub key: Option<PathBuf>,
    /// Ask for this name, and hold the certificate to it, in place of the URL's host
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// Lowest version that is spoken
    #[arg(long, value_name = "VERSION", default_value = "1.2")]
    pub tls_min: TlsMin,
    /// Later connections take up the session of an earlier one; off: every handshake is a full one
    #[arg(long, value_name = "WHAT", default_value = "off")]
    pub tls_resume: OnOff,
    /// Encryption by the kernel: this version has none, auto says so and on is refused [default: auto, unsaid]
    #[arg(long, value_name = "WHAT")]
    pub ktls: Option<KernelTls>,
}

/// `--ktls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelTls {
    /// Where it can be had
    Auto,
    /// Or the run is refused
    On,
    /// Never
    Off,
}

/// `--tls-min`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TlsMin {
    /// TLS 1.2
    #[default]
    #[value(name = "1.2")]
    V1_2,
    /// TLS 1.3
    #[value(name = "1.3")]
    V1_3,
}

impl TlsFlags {
    /// What they mean for these targets.
    ///
    /// Errors: a flag that no target has a use for; an SNI that is an address.
    pub fn plan(&self, targets: &[Target]) -> Result<Tls> {
        if !targets.iter().any(|t| t.tls)
            && let Some(flag) = self.first_given()
        {
            return Err(Error::usage(format!("{flag} goes with an https:// URL")));
        }
        if let Some(name) = self.sni.as_ref().filter(|n| n.parse::<std::net::IpAddr>().is_ok()) {
            return Err(Error::usage(format!("--sni '{name}': an address is never sent as SNI; expected a name")));
        }
        if self.ktls == Some(KernelTls::On) {
            return Err(Error::Environment {
                call: "--ktls on",
                what: format!("this version encrypts in user space alone; kernel TLS is {} here", offered()),
                cure: "leave it out, or --ktls off; bodies of https:// are then copied and encrypted by the client"
                    .into(),
            });
        }
        let name = |target: &Target| match (&self.sni, Url::parse(&target.url)) {
            (Some(name), _) => name.clone(),
            (None, Ok(Url::Web { host, .. })) => host,
            (None, _) => String::new(),
        };
        Ok(Tls {
            insecure: self.insecure,
            authorities: self.cacert.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            version_min: match self.tls_min {
                TlsMin::V1_2 => TlsVersion::V1_2,
                TlsMin::V1_3 => TlsVersion::V1_3,
            },
            resume: self.tls_resume == OnOff::On,
            names: targets.iter().map(name).collect(),
        })
    }

    /// What is to be said about `--ktls auto`, which comes to user space today.
    pub fn note(&self) -> Option<String> {
        let asked = self.ktls == Some(KernelTls::Auto);
        asked.then(|| {
            format!("--ktls auto: TLS is encrypted in user space; kernel TLS is {} here, and not used", offered())
        })
    }

    fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.insecure, "-k, --insecure"),
            (self.cacert.is_some(), "--cacert"),
            (self.cert.is_some(), "--cert"),
            (self.sni.is_some(), "--sni"),
            (self.tls_min != TlsMin::default(), "--tls-min"),
            (self.tls_resume == OnOff::On, "--tls-resume"),
            (self.ktls.is_some(), "--ktls"),
        ];
        given.into_iter().find(|g| g.0).map(|g| g.1)
    }
}

/// What the kernel says of kernel TLS.
fn offered() -> &'static str {
    match limit::kernel_tls() {
        Some(true) => "offered",
        Some(false) => "not offered (net.ipv4.tcp_available_ulp has no \"tls\")",
        None => "not known",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        let tls = url.starts_with("https");
        let host = String::new();
        Target { url: url.into(), host, path: "/".into(), addresses: Vec::new(), tls, local: false }
    }

    #[test]
    fn the_name_is_the_host_without_its_port_unless_another_is_asked_for() {
        let targets = [target("https://a.test:8443/x"), target("https://[::1]/"), target("http://b.test/")];
        let names = TlsFlags::default().plan(&targets).unwrap().names;
        assert_eq!(names[..2], ["a.test", "::1"]);
        let asked = TlsFlags { sni: Some("c.test".into()), ..TlsFlags::default() };
        assert_eq!(asked.plan(&targets).unwrap().names[1], "c.test");
        let address = TlsFlags { sni: Some("127.0.0.1".into()), ..TlsFlags::default() };
        assert!(address.plan(&targets).unwrap_err().to_string().contains("--sni '127.0.0.1'"));
    }

    #[test]
    fn flags_without_use_are_refused_by_name() {
        let plain = [target("http://a.test/")];
        assert!(TlsFlags::default().plan(&plain).is_ok());
        let flags = TlsFlags { insecure: true, ..TlsFlags::default() };
        assert!(flags.plan(&plain).unwrap_err().to_string().contains("--insecure"));
        let flags = TlsFlags { tls_min: TlsMin::V1_3, ..TlsFlags::default() };
        assert!(flags.plan(&plain).unwrap_err().to_string().contains("--tls-min"));
    }

    #[test]
    fn kernel_tls_is_refused_by_name_noted_or_off() {
        let https = [target("https://a.test/")];
        let of = |ktls| TlsFlags { ktls, ..TlsFlags::default() };
        let refused = of(Some(KernelTls::On)).plan(&https).unwrap_err();
        assert_eq!(refused.exit_code(), 3);
        let words = refused.to_string();
        assert!(words.contains("--ktls on") && words.contains("user space") && words.contains("--ktls off"), "{words}");
        for (ktls, noted) in [(None, false), (Some(KernelTls::Off), false), (Some(KernelTls::Auto), true)] {
            assert!(of(ktls).plan(&https).is_ok());
            assert_eq!(of(ktls).note().is_some_and(|n| n.contains("user space")), noted, "{ktls:?}");
        }
        let useless = of(Some(KernelTls::Off)).plan(&[target("http://a.test/")]).unwrap_err().to_string();
        assert!(useless.contains("--ktls"), "{useless}");
    }
}

//! The part of NRI's messages that the plugin reads and writes. Names and numbers are those of
//! pkg/api/api.proto of containerd/nri, and of request.proto of containerd/ttrpc; fields that are not
//! listed are skipped when they come.

use prost::Message;
use std::collections::HashMap;

/// The runtime's service.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// Events, as bits of [`Configured`] and as numbers of [`StateChange`].
pub const RUN_POD_SANDBOX: i32 = 1;
/// The pod's programs have ended; its address is still its own.
pub const STOP_POD_SANDBOX: i32 = 2;
/// A container is to be created.
pub const CREATE_CONTAINER: i32 = 4;

/// ttrpc: a call.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
}

/// ttrpc: its answer.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// google.rpc.Status.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// 0: done.
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// RegisterPluginRequest.
#[derive(Clone, PartialEq, Message)]
pub struct Register {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Two digits; plugins are called in their order.
    #[prost(string, tag = "2")]
    pub index: String,
}

/// ConfigureResponse.
#[derive(Clone, PartialEq, Message)]
pub struct Configured {
    /// Event 1 is bit 0.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// SynchronizeRequest.
#[derive(Clone, PartialEq, Message)]
pub struct Synchronize {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<Pod>,
    /// Others follow.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// SynchronizeResponse.
#[derive(Clone, PartialEq, Message)]
pub struct Synchronized {
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// RunPodSandboxRequest and StopPodSandboxRequest.
#[derive(Clone, PartialEq, Message)]
pub struct OfPod {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<Pod>,
}

/// StateChangeEvent: what runtimes before NRI 0.11 say instead.
#[derive(Clone, PartialEq, Message)]
pub struct StateChange {
    #[prost(int32, tag = "1")]
    pub event: i32,
    #[prost(message, optional, tag = "2")]
    pub pod: Option<Pod>,
}

/// CreateContainerRequest.
#[derive(Clone, PartialEq, Message)]
pub struct Create {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<Pod>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// CreateContainerResponse.
#[derive(Clone, PartialEq, Message)]
pub struct Created {
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<Adjustment>,
}

/// PodSandbox.
#[derive(Clone, PartialEq, Message)]
pub struct Pod {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPod>,
    /// Of the process that holds the pod's namespaces.
    #[prost(uint32, tag = "9")]
    pub pid: u32,
    #[prost(string, repeated, tag = "10")]
    pub ips: Vec<String>,
}

/// LinuxPodSandbox.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPod {
    #[prost(message, repeated, tag = "5")]
    pub namespaces: Vec<Namespace>,
}

/// LinuxNamespace.
#[derive(Clone, PartialEq, Message)]
pub struct Namespace {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

/// Container.
#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "3")]
    pub name: String,
    /// NAME=VALUE.
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<Mount>,
}

/// Mount.
#[derive(Clone, PartialEq, Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub destination: String,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub source: String,
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// ContainerAdjustment.
#[derive(Clone, PartialEq, Message)]
pub struct Adjustment {
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<Variable>,
}

/// KeyValue. A key that begins with `-` takes the variable away.
#[derive(Clone, PartialEq, Message)]
pub struct Variable {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

//! RabbitMQ: it answers, it is recent, and its queues exist or may be declared.

use super::finding::{Finding, Findings};
use super::version;
use crate::process::{Config, redact};
use crate::queue::{BrokerFacts, QueueFacts};

pub(super) const SERVER: &str = "broker";

pub(super) const UNREACHABLE: &str =
    "start RabbitMQ, or correct queue.url (host, port, user, password and virtual host)";

const UNSERVED: &str = "if it is the queue of orders, a running worker makes it again within a minute and nothing is lost; \
    otherwise delete it (rabbitmqctl delete_queue), and run `doorbuster migrate`";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of(SERVER);
    match crate::queue::examine(&config.queue()).await {
        Ok(facts) => {
            findings.reachable(redact(&config.queue.url));
            judge(facts, &mut findings);
        }
        Err(error) => {
            let found = format!("{}: {error}", redact(&config.queue.url));
            findings.unreachable(found, UNREACHABLE);
        }
    }
    findings.into_vec()
}

fn judge(facts: BrokerFacts, findings: &mut Findings) {
    match facts.version {
        None => findings.ok("version", "RabbitMQ does not report one"),
        Some(version) if version::is_at_least(&version, &[3, 10]) => {
            findings.ok("version", format!("RabbitMQ {version}"));
        }
        Some(version) => {
            findings.amiss("version", format!("RabbitMQ {version}"), "install RabbitMQ 3.10 or later");
        }
    }
    findings.installation(facts.installation);
    for (name, queue) in facts.queues {
        match queue {
            QueueFacts::Declared { waiting } => {
                findings.ok("queue", format!("{name} is declared; {waiting} messages wait"));
            }
            QueueFacts::Declarable => {
                findings
                    .ok("queue", format!("{name} is not declared yet; `doorbuster migrate` does that, or the first front or worker"));
            }
            QueueFacts::Unserved(why) => {
                let found = format!("the broker has lost {name}, but not its name: {why}");
                findings.amiss("queue", found, UNSERVED);
            }
            QueueFacts::OtherLimits(why) => {
                let advice = "restore queue.log_hours and queue.log_mb, or give the log new limits (docs/operating.md)";
                findings.amiss("queue", format!("{name}: {why}"), advice);
            }
            QueueFacts::Refused(why) => {
                let advice = match why.contains("ACCESS_REFUSED") {
                    true => {
                        "run `doorbuster migrate` with a user who may configure it, or let the user of queue.url do so (rabbitmqctl set_permissions)"
                    }
                    false => "restore queue.delivery_limit, or delete the queue while no sale is open",
                };
                findings.amiss("queue", format!("{name}: {why}"), advice);
            }
        }
    }
}

//! One call of `admit.lua`: many attempts of one sale go in, their verdicts come out.

use std::time::Duration;

use tokio::time::Instant;

use super::batcher::Verdicts;
use super::core::Gate;
use super::error::GateError;
use super::wire::{Reader, broken, order_id, read_entry, read_order_id, word};
use crate::domain::{Attempt, Limited, Millis, Number, RateOf, SaleId, Verdict};
use crate::fault::fault;
use crate::link::{Fault, NO_SCRIPT_RETRIES};

/// The position of the deadline among the arguments of `admit.lua`.
const DEADLINE: usize = 4;

/// How often a call is made whose deadline had passed by Redis's clock.
const TRIES: u32 = 3;

impl Gate {
    /// Decides one attempt. Concurrent attempts share a script call.
    ///
    /// On `Ok(Verdict::Accepted)` the unit is taken and the order is in the outbox. After [`GateError::Late`] and
    /// [`GateError::Broken`] either may have happened: repeat the same attempt to learn the outcome. After any
    /// other error nothing was taken.
    pub async fn admit(&self, attempt: Attempt) -> Result<Verdict, GateError> {
        self.batcher.admit(attempt).await
    }

    /// Decides attempts of one sale in the given order, in one script call. The outer error is that of the call and
    /// means the same as for [`Gate::admit`]; an inner one is that of reading one verdict.
    ///
    /// An attempt counts for nothing once the time for a reply is over, and [`GateError::Late`] comes no earlier: what a
    /// buyer then hears at another front stays true, even if the call of this one still reaches Redis.
    pub async fn admit_all(
        &self,
        sale: &SaleId,
        attempts: &[Attempt],
    ) -> Result<Vec<Result<Verdict, GateError>>, GateError> {
        let args = self.admission_args(sale, attempts);
        fault!("script.before", return Err(GateError::Unavailable("injected".into())));
        let begun = Instant::now();
        let until = begun + self.settings.redis.timeout;
        let reply = match self.run_in_time(&self.keys(sale).admission(), args, until).await {
            Err(error @ GateError::Late(_)) => {
                tokio::time::sleep_until(until).await;
                return Err(error);
            }
            reply => reply?,
        };
        metrics::histogram!("doorbuster_gate_admit_seconds").record(begun.elapsed());
        fault!("script.after", return Err(GateError::Late("injected".into())));
        if word(&reply).as_deref() == Some("not_loaded") {
            self.observe_waiting(sale, 0);
            return Ok(vec![Ok(Verdict::NotLoaded); attempts.len()]);
        }
        self.read_verdicts(sale, attempts, &reply)
    }

    fn admission_args(&self, sale: &SaleId, attempts: &[Attempt]) -> Vec<String> {
        let mut args = Vec::with_capacity(DEADLINE + 1 + attempts.len() * 7);
        args.extend(self.highest_args(sale));
        args.extend([self.bound(sale).to_string(), self.settings.sweep_grace.as_millis().to_string()]);
        args.push(String::new());
        for attempt in attempts {
            args.extend([
                order_id(attempt.id),
                attempt.user.to_string(),
                attempt.sku.to_string(),
                attempt.quantity.to_string(),
                attempt.key.to_string(),
                u8::from(attempt.keyed).to_string(),
                attempt.fingerprint.to_string(),
            ]);
        }
        args
    }

    /// Runs the script so that it decides nothing after `until`. If this process had Redis's clock wrong, because it was
    /// set, the script says so, and is run again.
    async fn run_in_time(
        &self,
        keys: &[String],
        mut args: Vec<String>,
        until: Instant,
    ) -> Result<redis::Value, GateError> {
        if self.clock.earliest(until).is_none() {
            self.clock().await?;
        }
        for _ in 0..TRIES {
            let deadline = self.clock.earliest(until).unwrap_or(Millis(0));
            args[DEADLINE] = deadline.0.to_string();
            let sent = Instant::now();
            let reply = self.run_admit(keys, &mut args).await?;
            let is_late = self.observe_clock(sent, &reply)?;
            if !is_late {
                return Ok(reply);
            }
            if Instant::now() >= until {
                break;
            }
        }
        Err(GateError::Unavailable("the attempt reached redis too late, and was not decided".into()))
    }

    /// Reads the time from a reply of the script. Returns whether it was too late to decide.
    fn observe_clock(&self, sent: Instant, reply: &redis::Value) -> Result<bool, GateError> {
        let redis::Value::Array(values) = reply else { return Ok(false) };
        let is_late = values.len() == 2;
        let mut reply = Reader::of(reply)?;
        reply.value()?;
        if !is_late {
            reply.value()?;
        }
        self.clock.observe(sent, reply.millis()?);
        Ok(is_late)
    }

    async fn run_admit(&self, keys: &[String], args: &mut [String]) -> Result<redis::Value, GateError> {
        let mut retries = 0;
        loop {
            match self.link.run_known(&self.scripts.admit, keys, args).await {
                // Redis can forget the script again between loading it and the call.
                Err(Fault::NoScript) if retries < NO_SCRIPT_RETRIES => {
                    retries += 1;
                    self.ensure_compared().await?;
                }
                Err(Fault::Full(_)) => {
                    // A bound of zero entries: repeats are answered, and nobody is admitted.
                    args[2] = "0".into();
                    return Ok(self.link.run(&self.scripts.admit_full, keys, args).await?);
                }
                decided => return Ok(decided?),
            }
        }
    }

    fn read_verdicts(&self, sale: &SaleId, attempts: &[Attempt], reply: &redis::Value) -> Verdicts {
        let mut reply = Reader::of(reply)?;
        let number = Number { epoch: reply.number()?, seq: reply.number()? };
        let now = reply.millis()?;
        let waiting = reply.number()?;
        let limit = read_limit(&mut reply)?;
        self.observe_number(sale, number);
        self.observe_waiting(sale, u64::try_from(waiting).unwrap_or(0));
        // An unreadable verdict, from an entry that a later version wrote, fails one attempt and not the whole call.
        let read = |attempt: &Attempt| match reply.value()? {
            redis::Value::Int(seq) => {
                Ok(Verdict::Accepted(attempt.admitted(Number { seq: *seq, ..number }, limit, now)))
            }
            verdict => read_verdict(&attempt.sale, now, Reader::of(verdict)?),
        };
        Ok(attempts.iter().map(read).collect())
    }
}

fn read_verdict(sale: &SaleId, now: Millis, mut reply: Reader<'_>) -> Result<Verdict, GateError> {
    let word = reply.text()?;
    Ok(match word.as_str() {
        "in_flight" => Verdict::InFlight(read_entry(sale, &reply.text()?)?),
        "settled" => Verdict::Settled(read_order_id(&reply.text()?)?),
        "key_reused" => Verdict::KeyReused,
        "key_required" => Verdict::KeyRequired,
        "not_open" => Verdict::NotOpen { now, opens_at: reply.millis()? },
        "closed" => Verdict::Closed,
        "paused" => {
            let message = Some(reply.text()?).filter(|message| !message.is_empty());
            Verdict::Paused { message, retry_after: reply.text()?.parse().ok() }
        }
        "frozen" => Verdict::Frozen,
        "already_ordered" => Verdict::AlreadyOrdered(read_order_id(&reply.text()?)?),
        "purchase_limit" => Verdict::PurchaseLimit { limit: read_limit(&mut reply)? },
        "rate_limited" => {
            let (of, rate) = (reply.text()?, reply.text()?);
            let of = [RateOf::User, RateOf::Sale, RateOf::EndedOrders]
                .into_iter()
                .find(|known| known.as_str() == of);
            let wait = reply.number()?;
            Verdict::RateLimited(Limited {
                of: of.ok_or_else(|| broken("what a rate applies to", &word))?,
                rate: rate.parse().map_err(|_| broken("a rate", &rate))?,
                retry_after: Duration::from_millis(u64::try_from(wait).map_err(|_| broken("a wait", wait))?),
            })
        }
        "unknown_sku" => Verdict::UnknownSku,
        "sold_out" => Verdict::SoldOut,
        "overloaded" => Verdict::Overloaded,
        _ => return Err(broken("a verdict", word)),
    })
}

fn read_limit(reply: &mut Reader<'_>) -> Result<u32, GateError> {
    let limit = reply.number()?;
    u32::try_from(limit).map_err(|_| broken("a limit", limit))
}

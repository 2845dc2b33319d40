import numpy as np
from scipy.special import ndtri, log_ndtr, ndtr
from scipy.stats import qmc
from regrow.search.samplers.curve_process import Observations, Process, fit
from regrow.search.space.domains import Choice

def transformed(costs, how):
    n = len(costs)
    if how == "rank":
        order = np.argsort(np.argsort(costs, kind="stable"), kind="stable")
        # ties: average
        u, inv, cnt = np.unique(costs, return_inverse=True, return_counts=True)
        ends = np.cumsum(cnt); mid = ends - (cnt + 1) / 2
        return ndtri((mid[inv] + 0.5 + 0.0) / (n))
    if how == "std":
        hi = np.quantile(costs, 0.75); lo = costs.min()
        c = np.minimum(costs, hi + 1.5 * (hi - lo))
        return (c - c.mean()) / (c.std() + 1e-12)
    if how == "log":
        lo, med = costs.min(), np.median(costs)
        hi = np.quantile(costs, 0.9)
        c = np.log(np.minimum(costs, hi) - lo + 0.1 * (med - lo) + 1e-12)
        return (c - c.mean()) / (c.std() + 1e-12)
    raise ValueError(how)

def propose(s, seed):
    rng = np.random.default_rng(seed)
    params = s._parameters
    choice = np.array([isinstance(p.domain, Choice) for p in params])
    curves = {**s._curves, **s._watched}
    numbers = sorted(curves)
    rows = [(n, t, v) for n in numbers for t, v in curves[n]]
    costs = np.array([v for _, _, v in rows]); costs[~np.isfinite(costs)] = np.nan
    costs = np.where(np.isnan(costs), np.nanmax(costs) if np.isfinite(costs).any() else 0.0, costs)
    z = transformed(costs, s.transform)
    times = np.array([t for _, t, _ in rows]); who = np.array([n for n, _, _ in rows])
    pts = np.array([s._points[n] for n in who])
    keep = select(who, times, z, s.cap)
    seen = Observations(points=pts[keep], times=times[keep], values=z[keep], choice=choice)
    # hyperparameters: of the trials below a number that grows geometrically
    m = s._start
    while m * 1.2 + 1 <= len(numbers): m = int(m * 1.2 + 1)
    chosen = set(numbers[:m])
    sub = np.array([i for i in range(len(rows)) if who[i] in chosen])
    sub = sub[select(who[sub], times[sub], z[sub], s.fitcap)]
    key = (m, len(sub), hash(z[sub].round(1).tobytes()) if len(sub) < 40 else 0)
    if key not in s._fits:
        s._fits = {key: fit(Observations(points=pts[sub], times=times[sub], values=z[sub], choice=choice))}
    h = s._fits[key]
    process = Process(seen, h)
    pending = [s._points[n] for n in s._points if s._results[n].status in ("running",)]
    known = np.array([s._points[n] for n in numbers])
    mean_known, _ = process.at_the_end(known)
    incumbent = mean_known.min()
    if pending: process = process.believing(np.array(pending))
    tops = known[np.argsort(mean_known, kind="stable")[:5]]
    def score(c):
        mean, sd = process.at_the_end(c)
        return log_ei((incumbent - mean) / sd) + np.log(sd)
    cand = np.vstack([snap(rng.random((300, len(params))), params), near(tops, params, rng, 40, 0.1), near(tops, params, rng, 20, 0.03)])
    val = score(cand)
    for width in (0.05, 0.02):
        best = cand[np.argsort(-val, kind="stable")[:4]]
        more = near(best, params, rng, 25, width)
        cand, val = np.vstack([best, more]), np.append(np.sort(val)[::-1][:4], score(more))
    return cand[int(np.argmax(val))].tolist()

def log_ei(z):
    out = np.empty_like(z)
    ok = z > -5
    zz = z[ok]; out[ok] = np.log(zz * ndtr(zz) + np.exp(-zz*zz/2)/np.sqrt(2*np.pi))
    zz = z[~ok]; out[~ok] = -zz*zz/2 - np.log(np.sqrt(2*np.pi)) - 2*np.log(-zz)
    return out

def near(tops, params, rng, each, width):
    base = np.repeat(tops, each, axis=0)
    d = len(params)
    mask = rng.random(base.shape) < max(2.0 / d, 0.3)
    moved = base + mask * rng.normal(0, width, base.shape)
    for j, p in enumerate(params):
        if isinstance(p.domain, Choice):
            flip = rng.random(len(base)) < 0.15
            moved[:, j] = np.where(flip, rng.random(len(base)), base[:, j])
    return snap(np.clip(moved, 1e-9, 1 - 1e-9), params)

def snap(c, params):
    for j, p in enumerate(params):
        cells = p.domain.cells
        if cells: c[:, j] = (np.minimum(np.floor(c[:, j] * cells), cells - 1) + 0.5) / cells
    return c

def select(who, times, z, cap):
    n = len(who)
    if n <= cap: return np.arange(n)
    last = np.append(who[1:] != who[:-1], True)
    top = np.zeros(n, bool)
    score = np.where(last, z, np.inf)
    # the trials that are best at their last time, with all they have; then last ones of others
    order = np.argsort(score, kind="stable")
    good = set(who[order[: cap // 4]].tolist())
    isgood = np.array([w in good for w in who])
    rank = np.where(times >= 1.0, 0, np.where(isgood, 1, np.where(last, 2, 3)))
    mixed = (who * 2654435761 % 2**32)
    pick = np.lexsort((mixed, rank))[:cap]
    return np.sort(pick)

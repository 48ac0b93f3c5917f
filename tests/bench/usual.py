"""The same endpoints written the usual way: FastAPI, SQLAlchemy's async ORM on aiosqlite, uvicorn.

As a good engineer would: typed models, one session per request, an index on each looked-up column,
write-ahead logging with durable commits, the price held in the transaction that adds the job.
"""

import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Annotated

import jwt
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import ForeignKey, event, select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from usual_constants import KEY, USER, WORKER_TOKEN

engine = create_async_engine(f"sqlite+aiosqlite:///{sys.argv[2]}")
Sessions = async_sessionmaker(engine, expire_on_commit=False)
app = FastAPI()


@event.listens_for(engine.sync_engine, "connect")
def durable(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    username: Mapped[str]
    credit_balance: Mapped[int]
    held: Mapped[int]
    usd_balance: Mapped[int]


class Device(Base):
    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(index=True)
    cpu_pct: Mapped[float | None]
    ram_pct: Mapped[float | None]
    last_heartbeat_at: Mapped[int | None]


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    buyer_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    title: Mapped[str]
    job_type: Mapped[str]
    price_credit: Mapped[int]
    duration_hrs: Mapped[int]
    status: Mapped[str] = mapped_column(index=True)


class NewJob(BaseModel):
    title: str = Field(min_length=1, max_length=200)
    job_type: str
    price_credit: float = Field(ge=0)
    duration_hrs: int = Field(ge=1)


class Heartbeat(BaseModel):
    cpu_pct: float | None = Field(default=None, ge=0, le=100)
    ram_pct: float | None = Field(default=None, ge=0, le=100)


class JobOut(BaseModel):
    id: str
    title: str
    job_type: str
    price_credit: float
    duration_hrs: int
    status: str
    buyer_id: str


class JobsOut(BaseModel):
    ok: bool = True
    jobs: list[JobOut]


async def database() -> AsyncIterator[AsyncSession]:
    async with Sessions() as session:
        yield session


Database = Annotated[AsyncSession, Depends(database)]


async def current_user(db: Database, authorization: Annotated[str, Header()]) -> User:
    try:
        claims = jwt.decode(authorization.removeprefix("Bearer "), KEY, algorithms=["HS256"])
    except jwt.InvalidTokenError:
        raise HTTPException(401) from None
    user = await db.get(User, claims["sub"])
    if user is None:
        raise HTTPException(401)
    return user


@app.on_event("startup")
async def fill() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with Sessions() as db:
        db.add(User(id=USER, username="u", credit_balance=10**15, held=0, usd_balance=10**9))
        db.add(Device(id=str(uuid.uuid4()), token=WORKER_TOKEN))
        await db.flush()
        for number in range(100):
            db.add(
                Job(
                    id=str(uuid.uuid4()),
                    buyer_id=USER,
                    title=f"job {number}",
                    job_type="docker",
                    price_credit=10**6,
                    duration_hrs=1,
                    status="waiting",
                )
            )
        await db.commit()


@app.get("/auth/me")
async def me(user: Annotated[User, Depends(current_user)]) -> dict[str, object]:
    return {
        "ok": True,
        "id": user.id,
        "username": user.username,
        "credit_balance": user.credit_balance / 10**6,
        "usd_balance": user.usd_balance / 10**6,
        "email_verified": False,
    }


@app.get("/api/marketplace/jobs")
async def jobs(db: Database) -> JobsOut:
    found = await db.scalars(
        select(Job).where(Job.status.in_(("waiting", "running"))).order_by(Job.id.desc()).limit(100)
    )
    return JobsOut(
        jobs=[
            JobOut(
                id=job.id,
                title=job.title,
                job_type=job.job_type,
                price_credit=job.price_credit / 10**6,
                duration_hrs=job.duration_hrs,
                status=job.status,
                buyer_id=job.buyer_id,
            )
            for job in found
        ]
    )


@app.post("/api/worker/heartbeat")
async def heartbeat(
    report: Heartbeat, db: Database, x_worker_token: Annotated[str, Header()]
) -> dict[str, bool]:
    device = await db.scalar(select(Device).where(Device.token == x_worker_token))
    if device is None:
        raise HTTPException(401)
    for name, value in report.model_dump(exclude_none=True).items():
        setattr(device, name, value)
    device.last_heartbeat_at = time.time_ns()
    await db.commit()
    return {"ok": True}


@app.post("/api/jobs")
async def create(
    new: NewJob, db: Database, user: Annotated[User, Depends(current_user)]
) -> dict[str, object]:
    price = round(new.price_credit * 10**6)
    held = await db.execute(
        update(User)
        .where(User.id == user.id, User.credit_balance >= price)
        .values(credit_balance=User.credit_balance - price, held=User.held + price)
    )
    if held.rowcount == 0:
        raise HTTPException(400)
    job = Job(
        id=str(uuid.uuid4()),
        buyer_id=user.id,
        title=new.title,
        job_type=new.job_type,
        price_credit=price,
        duration_hrs=new.duration_hrs,
        status="waiting",
    )
    db.add(job)
    await db.commit()
    return {"ok": True, "job_id": job.id}


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
    )

"""The texts of the service itself, in each of its languages; also those of the responder.

Names in braces are filled in: `PHRASES["en"]["devices"].format(count=2, online=1)`.
"""

from collections.abc import Mapping

from market.assistant.languages import Language

PHRASES: Mapping[Language, Mapping[str, str]] = {
    "en": {
        # The built-in responder.
        "program": "This is an automatic answer: no language model is at work here.",
        "help": (
            "I know these topics: balance, proxy sessions, jobs, worker devices, deploys, "
            "referrals, rewards for good deeds, account, and the proxy without a password, by HTTP "
            "and for UDP. Ask about one of them."
        ),
        "log_in": "Send a session token (Authorization: Bearer …) and I can look at your account.",
        "balance": "Your balance: {credit} credits and {usd} USD.",
        "balance_help": (
            "Credits and USD are two balances; GET /auth/me shows both. Credits come from jobs "
            "that your devices do, from referrals and from rewards; USD is paid in by the operator."
        ),
        "sessions": "You have {count} active proxy sessions with {left} GB left.",
        "sessions_help": (
            "POST /api/bandwidth/create with gb buys a SOCKS5 session at {price} USD per GB "
            "unless you name another price; GET /api/bandwidth/sessions shows what is used, and "
            "POST /api/bandwidth/end gives the rest of the price back."
        ),
        "passwordless_help": (
            "Name your public addresses as allow_ips in POST /api/bandwidth/create: from them, the "
            "passwordless_port of the answer needs no password: at once from where you ask, from "
            "others once a client has come from there to the port with the password. Each address "
            "opens one session on such a port."
        ),
        "http_help": (
            "The host and port of a session speak HTTP too: enter them as the HTTP proxy of a "
            "browser or program, with the session's username and password. Pages by https go "
            "through CONNECT, pages by http are forwarded."
        ),
        "udp_help": (
            "UDP goes by SOCKS5 (UDP ASSOCIATE) at the same host and port, with the same username "
            "and password; datagrams count like other bytes. An HTTP proxy carries no UDP."
        ),
        "jobs": "Of your newest jobs, {waiting} are waiting and {running} are running.",
        "jobs_help": (
            "POST /api/jobs puts a job up and holds its price in credits; a device takes it with "
            "POST /api/jobs/{{job_id}}/accept, and is paid when it reports it complete. "
            "GET /api/marketplace/jobs lists what is open."
        ),
        "devices": "You have {count} worker devices; {online} are online.",
        "devices_help": (
            "POST /api/worker/token/create registers a device and shows its token once. It is "
            "online while it sends POST /api/worker/heartbeat at least every 90 seconds."
        ),
        "referral": "Your referral code is {code}. {count} people came by it.",
        "referral_help": (
            "GET /api/referral/info shows your code: it earns you {referrer} credits and whoever "
            "applies it {referred}, with POST /api/referral/apply within 30 days of registering."
        ),
        "deploys_help": (
            "POST /api/deploy/job puts several replicas up at once, priced by GPU model, and pays "
            "in USD or credits; GET /api/deploy/job/{{id}} shows how far they are."
        ),
        "rewards_help": (
            "POST /api/assistant/analyze-image with a photo (JPEG or PNG) of a good deed: where a "
            "vision model is set up, it says what it shows, and a new, real photo earns credits, "
            "up to a limit a day. Chatting earns nothing."
        ),
        "training_help": (
            "To train a model, put up a job of the type training, or deploy replicas of the type "
            "Training on a GPU model of your choice."
        ),
        "account_help": (
            "POST /auth/login returns a token for 24 hours, POST /auth/refresh a new one; "
            "POST /auth/password/forgot sends a letter to choose a new password."
        ),
        # Photos.
        "photo": "A {format} photo, {width} × {height} pixels.",
        "no_model": "No vision model is set up here, so the photo was checked but not looked at.",
        "model_failed": (
            "The vision model does not answer now, so the photo was not looked at. "
            "Please try again later."
        ),
        "generated": "The file says that a generator made this picture, so it earns nothing.",
        "not_real": "This does not look like a real photo of what happened, so it earns nothing.",
        "no_deed": "Thank you. The photo shows no good deed that is rewarded here.",
        "unsure": "Thank you. The photo does not show clearly enough what was done.",
        "anonymous": "This looks like a good deed. Log in to earn credits for such photos.",
        "known": "This photo, or one just like it, was rewarded before.",
        "rewarded_before": (
            "You have earned {credits} credits for this photo, or one just like it, before."
        ),
        "user_cap": "Your limit of rewards for today is reached. Send the photo again tomorrow.",
        "total_cap": "Today's rewards of this service are all paid. Send the photo again tomorrow.",
        "rewarded": "Thank you for your good deed! You have earned {credits} credits.",
    },
    "tr": {
        "program": "Bu otomatik bir yanıttır: burada bir dil modeli çalışmıyor.",
        "help": (
            "Bildiğim konular: bakiye, proxy oturumları, işler, çalışan cihazlar, dağıtımlar, "
            "davetler, iyilik ödülleri, hesap; ayrıca parolasız proxy, HTTP proxy ve UDP. "
            "Bunlardan birini sorun."
        ),
        "log_in": (
            "Oturum belirtecinizi gönderin (Authorization: Bearer …), hesabınıza bakabilirim."
        ),
        "balance": "Bakiyeniz: {credit} kredi ve {usd} USD.",
        "balance_help": (
            "Kredi ve USD iki ayrı bakiyedir; GET /auth/me ikisini de gösterir. Kredi, "
            "cihazlarınızın yaptığı işlerden, davetlerden ve ödüllerden gelir; USD'yi işletmeci "
            "yatırır."
        ),
        "sessions": "{count} etkin proxy oturumunuz var, kalan {left} GB.",
        "sessions_help": (
            "POST /api/bandwidth/create, gb ile bir SOCKS5 oturumu satın alır; başka bir fiyat "
            "vermezseniz GB başına {price} USD. GET /api/bandwidth/sessions kullanılanı gösterir, "
            "POST /api/bandwidth/end kalan tutarı iade eder."
        ),
        "passwordless_help": (
            "POST /api/bandwidth/create isteğinde genel adreslerinizi allow_ips ile bildirin: "
            "yanıttaki passwordless_port, bu adreslerden parola istemez: isteği gönderdiğiniz "
            "adresten hemen, diğerlerinden bir istemci oradan parolayla bağlandıktan sonra. Her "
            "adres böyle bir portta bir oturum açar."
        ),
        "http_help": (
            "Oturumun sunucusu ve portu HTTP de konuşur: bunları tarayıcının ya da programın HTTP "
            "proxy ayarına, oturumun kullanıcı adı ve parolasıyla girin. https sayfaları CONNECT "
            "ile geçer, http sayfaları iletilir."
        ),
        "udp_help": (
            "UDP, aynı sunucu ve portta, aynı kullanıcı adı ve parolayla SOCKS5 (UDP ASSOCIATE) "
            "üzerinden gider; datagramlar da bayt olarak sayılır. HTTP proxy UDP taşımaz."
        ),
        "jobs": "En yeni işlerinizden {waiting} tanesi bekliyor, {running} tanesi çalışıyor.",
        "jobs_help": (
            "POST /api/jobs bir iş açar ve ücretini kredi olarak ayırır; bir cihaz onu "
            "POST /api/jobs/{{job_id}}/accept ile alır, bitirdiğini bildirince ödenir. "
            "GET /api/marketplace/jobs açık işleri listeler."
        ),
        "devices": "{count} çalışan cihazınız var; {online} tanesi çevrimiçi.",
        "devices_help": (
            "POST /api/worker/token/create bir cihaz kaydeder ve belirtecini bir kez gösterir. "
            "Cihaz en az 90 saniyede bir POST /api/worker/heartbeat gönderdikçe çevrimiçidir."
        ),
        "referral": "Davet kodunuz {code}. Onunla {count} kişi geldi.",
        "referral_help": (
            "GET /api/referral/info kodunuzu gösterir: size {referrer}, kodu kayıttan sonraki 30 "
            "gün içinde POST /api/referral/apply ile kullanana {referred} kredi kazandırır."
        ),
        "deploys_help": (
            "POST /api/deploy/job GPU modeline göre fiyatlanan birkaç kopyayı birden açar, USD ya "
            "da kredi ile ödenir; GET /api/deploy/job/{{id}} durumunu gösterir."
        ),
        "rewards_help": (
            "POST /api/assistant/analyze-image ile bir iyiliğin fotoğrafını (JPEG ya da PNG) "
            "gönderin: görüntü modeli kuruluysa ne gördüğünü söyler; yeni ve gerçek bir fotoğraf, "
            "günlük sınıra kadar kredi kazandırır. Sohbet kredi kazandırmaz."
        ),
        "training_help": (
            "Model eğitmek için training türünde bir iş açın ya da seçtiğiniz GPU modelinde "
            "Training türünde kopyalar dağıtın."
        ),
        "account_help": (
            "POST /auth/login 24 saatlik bir belirteç verir, POST /auth/refresh yenisini; "
            "POST /auth/password/forgot yeni parola seçmeniz için bir mektup yollar."
        ),
        "photo": "{width} × {height} piksellik bir {format} fotoğrafı.",
        "no_model": "Burada görüntü modeli kurulu değil; fotoğraf denetlendi ama incelenmedi.",
        "model_failed": (
            "Görüntü modeli şu anda yanıt vermiyor, fotoğraf incelenemedi. "
            "Lütfen daha sonra yeniden deneyin."
        ),
        "generated": "Dosya, bu resmi bir üretecin yaptığını söylüyor; bu yüzden ödül yok.",
        "not_real": "Bu, yaşanmış bir anın gerçek fotoğrafına benzemiyor; bu yüzden ödül yok.",
        "no_deed": "Teşekkürler. Fotoğrafta burada ödüllendirilen bir iyilik görünmüyor.",
        "unsure": "Teşekkürler. Fotoğraf, ne yapıldığını yeterince açık göstermiyor.",
        "anonymous": "Bu bir iyiliğe benziyor. Böyle fotoğraflarla kredi kazanmak için girin.",
        "known": "Bu fotoğraf ya da çok benzeri daha önce ödüllendirildi.",
        "rewarded_before": (
            "Bu fotoğraf ya da çok benzeri için daha önce {credits} kredi kazandınız."
        ),
        "user_cap": "Bugünkü ödül sınırınıza ulaştınız. Fotoğrafı yarın yeniden gönderin.",
        "total_cap": "Hizmetin bugünkü ödülleri tükendi. Fotoğrafı yarın yeniden gönderin.",
        "rewarded": "İyiliğiniz için teşekkürler! {credits} kredi kazandınız.",
    },
    "ru": {
        "program": "Это автоматический ответ: языковая модель здесь не работает.",
        "help": (
            "Я знаю такие темы: баланс, сессии прокси, задания, устройства, развёртывания, "
            "приглашения, награды за добрые дела, аккаунт, а также прокси без пароля, по HTTP и "
            "для UDP. Спросите об одной из них."
        ),
        "log_in": (
            "Пришлите токен сессии (Authorization: Bearer …), и я смогу заглянуть в ваш аккаунт."
        ),
        "balance": "Ваш баланс: {credit} кредитов и {usd} USD.",
        "balance_help": (
            "Кредиты и USD — два разных баланса; GET /auth/me показывает оба. Кредиты приносят "
            "задания, которые выполняют ваши устройства, приглашения и награды; USD вносит "
            "оператор."
        ),
        "sessions": "Активных сессий прокси: {count}, осталось {left} ГБ.",
        "sessions_help": (
            "POST /api/bandwidth/create с полем gb покупает сессию SOCKS5 по {price} USD за ГБ, "
            "если не назвать другую цену; GET /api/bandwidth/sessions показывает расход, а "
            "POST /api/bandwidth/end возвращает остаток."
        ),
        "passwordless_help": (
            "Назовите свои внешние адреса в поле allow_ips запроса POST /api/bandwidth/create: с "
            "них порт passwordless_port из ответа не требует пароля: с того, откуда вы "
            "обращаетесь, сразу, с других после подключения оттуда с паролем. На таком порту "
            "адрес открывает одну сессию."
        ),
        "http_help": (
            "Хост и порт сессии понимают и HTTP: укажите их как HTTP-прокси браузера или "
            "программы, с именем и паролем сессии. Страницы https идут через CONNECT, страницы "
            "http пересылаются."
        ),
        "udp_help": (
            "UDP идёт по SOCKS5 (UDP ASSOCIATE) через те же хост и порт, с теми же именем и "
            "паролем; датаграммы считаются, как и прочие байты. HTTP-прокси не передаёт UDP."
        ),
        "jobs": "Из ваших последних заданий ждут: {waiting}, выполняются: {running}.",
        "jobs_help": (
            "POST /api/jobs создаёт задание и удерживает его цену в кредитах; устройство берёт его "
            "через POST /api/jobs/{{job_id}}/accept и получает оплату, когда сообщит о выполнении. "
            "GET /api/marketplace/jobs показывает открытые задания."
        ),
        "devices": "Ваших устройств: {count}, из них в сети: {online}.",
        "devices_help": (
            "POST /api/worker/token/create регистрирует устройство и один раз показывает токен. "
            "Оно в сети, пока шлёт POST /api/worker/heartbeat не реже раза в 90 секунд."
        ),
        "referral": "Ваш код приглашения: {code}. По нему пришли: {count}.",
        "referral_help": (
            "GET /api/referral/info показывает ваш код: вам он приносит {referrer} кредитов, а "
            "тому, кто применит его через POST /api/referral/apply в течение 30 дней после "
            "регистрации, — {referred}."
        ),
        "deploys_help": (
            "POST /api/deploy/job создаёт сразу несколько копий по цене выбранной модели GPU, с "
            "оплатой в USD или кредитах; GET /api/deploy/job/{{id}} показывает их состояние."
        ),
        "rewards_help": (
            "Пришлите фото доброго дела (JPEG или PNG) на POST /api/assistant/analyze-image: если "
            "настроена модель зрения, она скажет, что на нём, а новое настоящее фото принесёт "
            "кредиты в пределах дневного лимита. За разговоры наград нет."
        ),
        "training_help": (
            "Чтобы обучить модель, создайте задание типа training или разверните копии типа "
            "Training на выбранной модели GPU."
        ),
        "account_help": (
            "POST /auth/login даёт токен на 24 часа, POST /auth/refresh — новый; "
            "POST /auth/password/forgot отправит письмо для выбора нового пароля."
        ),
        "photo": "Фото {format}, {width} × {height} пикселей.",
        "no_model": "Модель зрения здесь не настроена: фото проверено, но не рассмотрено.",
        "model_failed": (
            "Модель зрения сейчас не отвечает, фото не рассмотрено. Попробуйте позже."
        ),
        "generated": "Файл сообщает, что картинку создал генератор, поэтому награды нет.",
        "not_real": "Это не похоже на настоящее фото произошедшего, поэтому награды нет.",
        "no_deed": "Спасибо. На фото нет доброго дела из тех, что здесь награждаются.",
        "unsure": "Спасибо. По фото недостаточно ясно, что было сделано.",
        "anonymous": "Похоже на доброе дело. Войдите, чтобы получать кредиты за такие фото.",
        "known": "Это фото или очень похожее уже было награждено.",
        "rewarded_before": ("За это фото или очень похожее вы уже заработали кредитов: {credits}."),
        "user_cap": "Ваш лимит наград на сегодня исчерпан. Пришлите фото завтра.",
        "total_cap": "Награды сервиса на сегодня закончились. Пришлите фото завтра.",
        "rewarded": "Спасибо за доброе дело! Вы заработали кредитов: {credits}.",
    },
    "ko": {
        "program": "자동 응답입니다. 여기에는 언어 모델이 연결되어 있지 않습니다.",
        "help": (
            "제가 아는 주제: 잔액, 프록시 세션, 작업, 작업 장치, 배포, 추천, 선행 보상, 계정, "
            "그리고 비밀번호 없는 프록시, HTTP 프록시, UDP. 이 중 하나를 물어보세요."
        ),
        "log_in": "세션 토큰(Authorization: Bearer …)을 보내면 계정을 확인해 드릴 수 있습니다.",
        "balance": "잔액: {credit} 크레딧, {usd} USD.",
        "balance_help": (
            "크레딧과 USD는 별개의 잔액이며 GET /auth/me 에서 모두 볼 수 있습니다. 크레딧은 장치가 "
            "수행한 작업, 추천, 보상으로 얻고, USD는 운영자가 입금합니다."
        ),
        "sessions": "활성 프록시 세션 {count}개, 남은 용량 {left} GB.",
        "sessions_help": (
            "POST /api/bandwidth/create 에 gb를 보내면 SOCKS5 세션을 구매합니다. 다른 가격을 "
            "지정하지 않으면 GB당 {price} USD입니다. GET /api/bandwidth/sessions 는 사용량을 "
            "보여 주고, POST /api/bandwidth/end 는 남은 금액을 돌려줍니다."
        ),
        "passwordless_help": (
            "POST /api/bandwidth/create 에 공인 주소를 allow_ips로 보내면, 그 주소에서는 응답의 "
            "passwordless_port 에 비밀번호가 필요 없습니다. 요청을 보낸 주소는 바로, 다른 주소는 "
            "그곳에서 비밀번호로 한 번 접속한 뒤부터입니다. "
            "주소마다 그 포트에서 세션 하나를 엽니다."
        ),
        "http_help": (
            "세션의 호스트와 포트는 HTTP도 지원합니다. 브라우저나 프로그램의 HTTP 프록시로 세션의 "
            "사용자 이름과 비밀번호와 함께 입력하세요. https 페이지는 CONNECT로 지나가고 http "
            "페이지는 전달됩니다."
        ),
        "udp_help": (
            "UDP는 같은 호스트와 포트에서 같은 사용자 이름과 비밀번호로 SOCKS5(UDP ASSOCIATE)를 "
            "통해 갑니다. 데이터그램도 바이트로 계산됩니다. HTTP 프록시는 UDP를 전달하지 않습니다."
        ),
        "jobs": "최근 작업 중 대기 {waiting}개, 실행 중 {running}개.",
        "jobs_help": (
            "POST /api/jobs 는 작업을 등록하고 가격을 크레딧으로 잡아 둡니다. 장치는 "
            "POST /api/jobs/{{job_id}}/accept 로 작업을 맡고, 완료를 보고하면 지급됩니다. "
            "GET /api/marketplace/jobs 에서 열린 작업을 볼 수 있습니다."
        ),
        "devices": "작업 장치 {count}대, 온라인 {online}대.",
        "devices_help": (
            "POST /api/worker/token/create 는 장치를 등록하고 토큰을 한 번만 보여 줍니다. 장치는 "
            "90초 안에 한 번씩 POST /api/worker/heartbeat 를 보내는 동안 온라인입니다."
        ),
        "referral": "추천 코드: {code}. 이 코드로 온 사람: {count}명.",
        "referral_help": (
            "GET /api/referral/info 에서 코드를 볼 수 있습니다. 추천인은 {referrer} 크레딧을, 가입 "
            "후 30일 안에 POST /api/referral/apply 로 코드를 적용한 사람은 {referred} 크레딧을 "
            "받습니다."
        ),
        "deploys_help": (
            "POST /api/deploy/job 은 GPU 모델별 가격으로 여러 복제본을 한 번에 등록하며 USD나 "
            "크레딧으로 지불합니다. GET /api/deploy/job/{{id}} 에서 진행 상황을 볼 수 있습니다."
        ),
        "rewards_help": (
            "선행 사진(JPEG 또는 PNG)을 POST /api/assistant/analyze-image 로 보내세요. 비전 모델이 "
            "설정되어 있으면 무엇이 보이는지 알려 주고, 새로운 실제 사진은 하루 한도 안에서 "
            "크레딧을 받습니다. 대화로는 보상을 받을 수 없습니다."
        ),
        "training_help": (
            "모델을 학습시키려면 training 유형의 작업을 등록하거나, 원하는 GPU 모델에 Training "
            "유형의 복제본을 배포하세요."
        ),
        "account_help": (
            "POST /auth/login 은 24시간 유효한 토큰을, POST /auth/refresh 는 새 토큰을 줍니다. "
            "POST /auth/password/forgot 은 새 비밀번호를 정하는 메일을 보냅니다."
        ),
        "photo": "{format} 사진, {width} × {height} 픽셀.",
        "no_model": "비전 모델이 설정되어 있지 않아 사진을 검사만 하고 내용은 보지 않았습니다.",
        "model_failed": (
            "비전 모델이 지금 응답하지 않아 사진을 보지 못했습니다. 나중에 다시 시도해 주세요."
        ),
        "generated": "파일에 생성 도구로 만든 그림이라고 적혀 있어 보상이 없습니다.",
        "not_real": "실제로 일어난 일을 찍은 사진으로 보이지 않아 보상이 없습니다.",
        "no_deed": "감사합니다. 이 사진에는 보상 대상인 선행이 보이지 않습니다.",
        "unsure": "감사합니다. 사진만으로는 무엇을 했는지 충분히 알 수 없습니다.",
        "anonymous": "선행으로 보입니다. 이런 사진으로 크레딧을 받으려면 로그인하세요.",
        "known": "이 사진 또는 거의 같은 사진이 이미 보상을 받았습니다.",
        "rewarded_before": (
            "이 사진 또는 거의 같은 사진으로 이미 {credits} 크레딧을 받으셨습니다."
        ),
        "user_cap": "오늘의 보상 한도에 도달했습니다. 내일 다시 보내 주세요.",
        "total_cap": "오늘 이 서비스의 보상이 모두 지급되었습니다. 내일 다시 보내 주세요.",
        "rewarded": "선행에 감사드립니다! {credits} 크레딧을 받으셨습니다.",
    },
}


def phrase(language: Language, name: str, **values: object) -> str:
    """Return a phrase, filled in."""
    return PHRASES[language][name].format(**values)

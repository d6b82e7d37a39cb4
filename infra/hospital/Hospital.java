import ca.uhn.hl7v2.DefaultHapiContext;
import ca.uhn.hl7v2.HL7Exception;
import ca.uhn.hl7v2.HapiContext;
import ca.uhn.hl7v2.app.Connection;
import ca.uhn.hl7v2.app.HL7Service;
import ca.uhn.hl7v2.model.Message;
import ca.uhn.hl7v2.model.v251.message.ORU_R01;
import ca.uhn.hl7v2.model.v251.segment.OBX;
import ca.uhn.hl7v2.protocol.ReceivingApplication;
import ca.uhn.hl7v2.util.StandardSocketFactory;
import ca.uhn.hl7v2.util.Terser;
import ca.uhn.hl7v2.util.idgenerator.InMemoryIDGenerator;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.Map;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * A hospital's interface engine by HAPI, over MLLP and TLS.
 *
 * <p>Hospital send HOST PORT CERT KEY CA sends the messages of standard input, and prints each acknowledgement:
 * code, control id, reason. Segments are lines, and an empty line ends a message. HAPI parses each message by the
 * standard's structures.
 *
 * <p>Hospital receive PORT CERT KEY CA acknowledges observations, and prints identifier, code, value and unit of
 * each. A peer needs a certificate of CA. It ends when standard input ends.
 */
public final class Hospital {
    private Hospital() {}

    public static void main(String[] args) throws Exception {
        int files = args.length - 3;
        SSLContext tls = tls(Path.of(args[files]), Path.of(args[files + 1]), Path.of(args[files + 2]));
        try (HapiContext context = new DefaultHapiContext()) {
            // The default generator writes a file into the working directory.
            context.getParserConfiguration().setIdGenerator(new InMemoryIDGenerator());
            context.setSocketFactory(
                    new StandardSocketFactory() {
                        @Override
                        public Socket createTlsSocket() throws IOException {
                            return tls.getSocketFactory().createSocket();
                        }

                        @Override
                        public ServerSocket createTlsServerSocket() throws IOException {
                            SSLServerSocket socket = (SSLServerSocket) tls.getServerSocketFactory().createServerSocket();
                            socket.setNeedClientAuth(true);
                            return socket;
                        }
                    });
            if (args[0].equals("send")) {
                send(context, args[1], Integer.parseInt(args[2]));
            } else {
                receive(context, Integer.parseInt(args[1]));
            }
        }
    }

    private static void send(HapiContext context, String host, int port) throws Exception {
        Connection connection = context.newClient(host, port, true);
        String all = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
        for (String text : all.split("\n\n")) {
            Message message = context.getPipeParser().parse(text.strip().replace('\n', '\r') + "\r");
            Terser answer = new Terser(connection.getInitiator().sendAndReceive(message));
            String reason = answer.get("/ERR-8");
            System.out.println(answer.get("/MSA-1") + " " + answer.get("/MSA-2") + " " + (reason == null ? "" : reason));
        }
        connection.close();
    }

    private static void receive(HapiContext context, int port) throws Exception {
        HL7Service server = context.newServer(port, true);
        server.registerApplication(
                "ORU",
                "R01",
                new ReceivingApplication<Message>() {
                    @Override
                    public Message processMessage(Message message, Map<String, Object> metadata) throws HL7Exception {
                        ORU_R01 report = (ORU_R01) message;
                        var result = report.getPATIENT_RESULT();
                        String patient = result.getPATIENT().getPID().getPatientIdentifierList(0).getIDNumber().getValue();
                        for (var it : result.getORDER_OBSERVATION().getOBSERVATIONAll()) {
                            OBX obx = it.getOBX();
                            System.out.println(
                                    patient
                                            + " "
                                            + obx.getObservationIdentifier().getIdentifier().getValue()
                                            + " "
                                            + obx.getObservationValue(0).encode()
                                            + " "
                                            + obx.getUnits().getIdentifier().getValue());
                        }
                        try {
                            return message.generateACK();
                        } catch (IOException error) {
                            throw new HL7Exception(error);
                        }
                    }

                    @Override
                    public boolean canProcess(Message message) {
                        return true;
                    }
                });
        server.startAndWait();
        System.out.println("listening");
        System.in.readAllBytes();
        server.stopAndWait();
    }

    private static SSLContext tls(Path cert, Path key, Path ca) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        Collection<? extends Certificate> chain =
                factory.generateCertificates(new ByteArrayInputStream(Files.readAllBytes(cert)));
        String pem = Files.readString(key).replaceAll("-----[A-Z ]+-----", "").replaceAll("\\s", "");
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
        KeyStore own = KeyStore.getInstance("PKCS12");
        own.load(null, null);
        own.setKeyEntry(
                "own", KeyFactory.getInstance("EC").generatePrivate(encoded), new char[0], chain.toArray(new Certificate[0]));
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        int number = 0;
        for (Certificate it : factory.generateCertificates(new ByteArrayInputStream(Files.readAllBytes(ca)))) {
            trusted.setCertificateEntry("ca" + number++, it);
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, new char[0]);
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }
}
